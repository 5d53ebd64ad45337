"""Language runtimes whose functions are shown in the place of their interpreter's.

The seam: a ``MergedRuntime`` (``seam.py``) says whether a process has it, tells the probes where
its frames are, and names them. ``cpython.py`` is the one there is.
"""
