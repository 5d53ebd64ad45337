"""tracelloc: a live heap profiler for running, unmodified Linux programs.

``.github/DESIGN.md`` follows an event from the target's malloc to
the screen, and describes the threads, the locks and the layers of the packages.
"""

__version__ = "0.1.0"
