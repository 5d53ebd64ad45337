"""What do three empty probes cost, the least that any tracer of malloc and free must?"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tests.bench.allocator import Allocator
from tests.bench.processes import SkippedError
from tracelloc import probes
from tracelloc.errors import TracellocError
from tracelloc.record.kernel.attach import Attachment, attach_type
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.kernel.compiler import import_bcc

TEXT = b"""
#include <uapi/linux/ptrace.h>
int empty(struct pt_regs *context) { return 0; }
"""


@cache
def _program() -> int:
    """The descriptor of a program that does nothing, loaded for uprobe_multi links."""
    bcc = import_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = str(probes.kernel_headers())
    _kept.append(bcc.BPF(text=TEXT))
    kind = {"attach_type": attach_type(Method.MULTI, "empty")}
    return int(_kept[0].load_func(b"empty", bcc.BPF.KPROBE, **kind).fd)


_kept: list[Any] = []  # bcc unloads a program with the object that compiled it


class _Everywhere(Attachment):
    """Probes in all processes of the machine."""

    def _link(self, pid: int, probes: Sequence[Any]) -> int:
        del pid
        return super()._link(0, probes)


@contextmanager
def empty_probes(allocator: Allocator, *, everywhere: bool = False) -> Iterator[None]:
    """Empty probes on malloc, its return and free, at the best places.

    ``everywhere``: in all processes that have the same library.
    """
    try:
        points = allocator.points("empty")
        kind = _Everywhere if everywhere else Attachment
        attachment = kind(Method.MULTI, allocator.pid, points, lambda _name: _program())
    except (TracellocError, OSError) as error:
        raise SkippedError(f"uprobe_multi links: {error}") from error
    try:
        yield
    finally:
        attachment.close()
