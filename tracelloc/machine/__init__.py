"""The memory of all processes: ``tracelloc top`` and ``watch``."""
