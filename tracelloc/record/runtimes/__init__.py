"""Language runtimes whose functions are shown instead of their interpreter's frames.

CPython is the only one: ``CPythonSupport`` finds it in a process; ``CPython`` tells the
probes where frames are, and names them.
"""
