"""Language runtimes whose functions are shown instead of their interpreter's frames.

CPython is the only one: ``CPython`` (``cpython/interpreter.py``) tells the probes where its frames
are, and names them.
"""
