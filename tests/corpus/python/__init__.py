"""Services of Python frameworks, leaking and clean, for ``tests.bench.pythonservices``."""
