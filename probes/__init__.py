"""The BPF sources, and the kernel headers' stand-in that bcc compiles them with.

The C files are package data. bcc compiles one text, so the local headers are put
in front of the program in the order they are named here; ``#line`` keeps the
compiler's messages true. ``kernel/`` is named to bcc as the kernel's source tree:
the probes use no kernel type but ``struct pt_regs``, so a machine needs no kernel
headers.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_WALKS = {True: ("row.h", "window.h", "memo.h", "walk_rows.h"), False: ("walk_fp.h",)}


def directory() -> Path:
    """Where the C sources lie. A directory: the package is never a zip archive."""
    return Path(str(files(__name__)))


def kernel_headers() -> Path:
    """The directory for bcc's ``BCC_KERNEL_SOURCE``."""
    return directory() / "kernel"


def parts(
    *, use_rows: bool, trace_mappings: bool = False, python: bool = False, otel: bool = False
) -> tuple[str, ...]:
    """Source files in the order of their dependence.

    ``use_rows``: stacks are walked by call-frame information, else by frame pointers.
    ``python``: frames of Python are merged into stacks. ``otel``: what programs report by
    OpenTelemetry's probes.
    """
    reports = ("otel.bpf.c",) if otel else ()
    mappings = ("mappings.bpf.c",) if trace_mappings else ()
    walk = _WALKS[use_rows]
    tools = ("event.h", "maps.h", "preemption.h", "read.h", "space.h", "stack.h", "scratch.h")
    merged, walker = (("python.h",), ("python.bpf.c",)) if python else ((), ())
    return (
        *tools,
        *walk,
        *merged,
        "intern.h",
        "spill.h",
        "ring.h",
        "emit.h",
        "heap.bpf.c",
        *walker,
        *mappings,
        *reports,
    )


def source_text(
    *, use_rows: bool, trace_mappings: bool = False, python: bool = False, otel: bool = False
) -> str:
    """All parts as one C text. Raises OSError if a file is missing."""
    text = ["#include <uapi/linux/ptrace.h>"]
    for part in parts(use_rows=use_rows, trace_mappings=trace_mappings, python=python, otel=otel):
        lines = (directory() / part).read_text(encoding="utf-8").splitlines()
        text.append(f'#line 1 "{part}"')
        text.extend("" if line.startswith('#include "') else line for line in lines)
    return "\n".join(text) + "\n"
