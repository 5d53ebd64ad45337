"""tracelloc: a live heap profiler for running, unmodified Linux programs.

Data path, each layer knowing only those before it::

    probes/      BPF programs on the allocator's functions: pair, walk stacks, report
    capture      compile and load them (the only importer of bcc), ring: their memory
    allocators → placement → attach      which functions, which byte of them, how
    session      one thread that drains the rings into
    table        the outstanding blocks, and totals per call stack
    snapshot     a frozen copy of both, for views
    dwarf        source lines and inlined functions of one file's code addresses
    symbols      return addresses to names, filters to what is worth showing
    views        names, metrics, trees and profiles: what those below share
    report, export, ui                   text and JSON, files, the screen

Capture never symbolizes, views never touch the target, hiding never destroys data,
and whatever could not be seen is counted and shown.
"""

__version__ = "0.1.0"
