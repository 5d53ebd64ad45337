"""Language runtimes whose functions are shown instead of their interpreter's frames.

The interface: a ``RuntimeSupport`` (``runtimesupport.py``) finds the runtime in a process; its
``MergedRuntime`` tells the probes where frames are, and names them. CPython is the only one.
"""
