"""tracelloc: a live heap profiler for running, unmodified Linux programs.

The way of one event, from the target's malloc to the eye, with the files that it passes::

    probes/heap.bpf.c        pairs the call with its return, in the target's thread
    probes/walk_rows.h       walks the call stack; probes/emit.h puts the event in a ring
    capture/ring.py          reads the ring: mapped memory as numpy records
    capture/drain.py         a batch in order, also of what came while the ring was full
    tracing/session.py       the pump thread takes batches, and the stacks they name
    unwinding/feed.py        stacks to their process; what the probes could not walk is finished
    tracing/processes.py     events to the heap of the memory image that they are of
    heap/heap.py             what an image holds: heap/table.py, blocks and totals per stack
    verdict/judge.py         which stacks leak, every few seconds
    tracing/session.py       a snapshot of all processes: snapshots/snapshot.py
    command/run.py           the snapshot of one moment, for every front-end
    views/naming.py          names for its stacks: symbols/, dwarf/, demangle/, filters/
    command/run.py           text and JSON: report/trace.py, report/sections.py
    command/outputs.py       files: views/profile.py, export/
    live/                    HTTP and push; watching.py: rules and commands
    ui/                      the screen: refresher, picture, the views of ui/state.py

How a trace begins: command/starts.py, tracing/begin.py (a running process: its allocators,
target/ and placement/; the probes, capture/bpf.py and capture/attach.py), tracing/launch.py
(a program) and tracing/follower.py (children). command/run.py composes it all.

Each layer knows only those before it (tests/unit/test_architecture.py). Capture never
symbolizes, views never touch the target, hiding never destroys data, and whatever could not
be seen is counted and shown.
"""

__version__ = "0.1.0"
