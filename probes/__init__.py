"""The BPF sources, and the substitute kernel headers that bcc compiles them with.

The C files are package data. bcc compiles one text, so this module puts the local headers
before the program, in the order of ``parts``; ``#line`` keeps the compiler's messages
correct. bcc gets ``kernel/`` as the kernel's source tree: the probes use no kernel type but
``struct pt_regs``, so a machine needs no kernel headers.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def directory() -> Path:
    """The directory of the C sources. The package is never a zip archive."""
    return Path(str(files(__name__)))


def kernel_headers() -> Path:
    """The directory for bcc's ``BCC_KERNEL_SOURCE``."""
    return directory() / "kernel"


def parts(
    *,
    use_rows: bool,
    machine: str,
    trace_mappings: bool = False,
    python: bool = False,
    usdt: bool = False,
) -> tuple[str, ...]:
    """Source files, each after those that it depends on.

    ``use_rows``: walk stacks by call-frame information, else by frame pointers. ``machine``: the
    kernel's name of the processor, such as ``x86_64``. ``python``:
    merge Python frames into stacks. ``usdt``: report allocations from USDT probes.
    """
    reports = ("usdt.bpf.c",) if usdt else ()
    mappings = ("mappings.bpf.c",) if trace_mappings else ()
    rows = "row.h", "window.h", "memo.h", f"step_{machine}.h", "walk_rows.h"
    walk = rows if use_rows else ("walk_fp.h",)
    kernel = "event.h", "maps.h", "preemption.h", "read.h"
    tools = *kernel, f"{machine}.h", "space.h", "stack.h", "scratch.h"
    merged, walker = (("python.h",), ("python.bpf.c",)) if python else ((), ())
    return (
        *tools,
        "counted.h",
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
    *,
    use_rows: bool,
    machine: str,
    trace_mappings: bool = False,
    python: bool = False,
    usdt: bool = False,
) -> str:
    """All parts as one C text. Raises OSError if a file is missing."""
    text = ["#include <uapi/linux/ptrace.h>"]
    for part in parts(
        use_rows=use_rows,
        machine=machine,
        trace_mappings=trace_mappings,
        python=python,
        usdt=usdt,
    ):
        lines = (directory() / part).read_text(encoding="utf-8").splitlines()
        text.append(f'#line 1 "{part}"')
        text.extend("" if line.startswith('#include "') else line for line in lines)
    return "\n".join(text) + "\n"
