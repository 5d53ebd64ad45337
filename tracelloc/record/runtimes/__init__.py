"""Language runtimes whose functions are shown instead of their interpreter's frames.

The interface: a ``MergedRuntime`` (``seam.py``) detects the runtime in a process, tells the probes
where its frames are, and names them. CPython is the only one.
"""
