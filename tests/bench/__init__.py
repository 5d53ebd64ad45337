"""What tracelloc costs, beside its peers: ``make bench``, or ``python -m tests.bench``."""
