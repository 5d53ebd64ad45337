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

PARTS = ("event.h", "maps.h", "stack.h", "heap.bpf.c")
"""Source files in the order of their dependence."""


def directory() -> Path:
    """Where the C sources lie. A directory: the package is never a zip archive."""
    return Path(str(files(__name__)))


def kernel_headers() -> Path:
    """The directory for bcc's ``BCC_KERNEL_SOURCE``."""
    return directory() / "kernel"


def source_text() -> str:
    """All parts as one C text. Raises OSError if a file is missing."""
    text = ["#include <uapi/linux/ptrace.h>"]
    for part in PARTS:
        lines = (directory() / part).read_text(encoding="utf-8").splitlines()
        text.append(f'#line 1 "{part}"')
        text.extend("" if line.startswith('#include "') else line for line in lines)
    return "\n".join(text) + "\n"
