"""Limits tracelloc's own memory, and decides what to give up before exceeding the limit.

The target determines how much there is to store: distinct call stacks, live blocks, names. At three
quarters of the budget, new call stacks are cut to their innermost frames. At 15/16 of it, tracing
ends in good order. RLIMIT_DATA is the backstop: a single allocation far beyond the budget fails.

Why there is no stage with sampling: the probes know sampled blocks by address, so that frees
of all others need not be reported (``probes/heap.bpf.c``). Blocks recorded before would stay
in the table for ever, unless all their addresses were sent to the kernel just when memory is
short. Figures would also be exact for some blocks and estimates for others. A sampled
trace is another trace: the last message says how to start one.
"""

import ctypes
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from tracelloc.record.process.procfs import Process
from tracelloc.system.memorylimits import default_budget
from tracelloc.text import format_size

_SHARES: Final = 3 / 4, 15 / 16  # Of the budget, at which the next stage is reached, by stage
# Each process that reads the target's files may use this fraction (1/n) of the budget.
_WORKER_SHARE: Final = 4


class MemoryStage(IntEnum):
    """How much tracelloc has given up to save memory."""

    WHOLE = 0
    FOLDED = 1  # New call stacks are cut
    FULL = 2  # Tracing must end


def own_memory() -> int:
    """Returns the resident bytes of tracelloc, and of the workers that read files."""
    from tracelloc.record.worker.client import workers_memory  # noqa: PLC0415 - none without a trace

    return (Process(os.getpid()).rss_bytes() or 0) + workers_memory()


def return_freed_memory() -> None:
    """Makes glibc return freed memory to the kernel (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryBudget:
    """The limit of tracelloc's own memory, and what to give up before it is exceeded.

    One thread calls ``take_stage_message``; another may call ``when_full``.
    """

    def __init__(
        self, limit_bytes: int | None = None, used_bytes: Callable[[], int] = own_memory
    ) -> None:
        """``limit_bytes``: the budget; None: ``default_budget``."""
        self.limit_bytes = default_budget() if limit_bytes is None else limit_bytes
        self.stage = MemoryStage.WHOLE
        self._used_bytes = used_bytes
        self._when_full: Callable[[str], None] | None = None
        self._last_words = ""

    @property
    def worker_bytes(self) -> int:
        """Memory limit of each worker in bytes; data that would exceed it is missing."""
        return self.limit_bytes // _WORKER_SHARE

    @property
    def left_bytes(self) -> int:
        """Bytes of the budget that tracelloc may still use."""
        return max(0, self.limit_bytes - self._used_bytes())

    def take_stage_message(self) -> str | None:
        """Returns the message for a stage reached since the last call; None if there is none."""
        used, limit = self._used_bytes(), self.limit_bytes
        # One stage at a time, however fast memory grows: cutting stacks may be enough.
        if self.stage is MemoryStage.FULL or used < limit * _SHARES[self.stage]:
            return None
        self.stage = MemoryStage(self.stage + 1)
        so_far = f"tracelloc uses {format_size(used)} of the {format_size(limit)} it may"
        so_far += " (--max-memory)"
        if self.stage is MemoryStage.FOLDED:
            return f"warning: {so_far}: new call stacks are cut to their innermost frames"
        sampling = "with --sample 512k it keeps one block per 512 KiB instead of each"
        self._last_words = f"{so_far}: tracing ends here; {sampling}"
        if self._when_full is not None:
            self._when_full(self._last_words)
        return None

    def when_full(self, end: Callable[[str], None]) -> None:
        """Calls ``end`` with the reason when tracing must end, or at once if it must already."""
        self._when_full = end
        if self.stage is MemoryStage.FULL:
            end(self._last_words)
