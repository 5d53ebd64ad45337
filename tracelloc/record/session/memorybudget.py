"""How much memory tracelloc itself may take, and what it gives up before it takes more.

The target decides how much there is to remember: distinct call stacks, live blocks, names. At
three quarters of the budget, new call stacks are cut to their innermost frames; when nearly all of
it is used, tracing ends in good order. Behind that stands RLIMIT_DATA, so that one step that asks
for too much fails by itself.

Why nothing is sampled in between: sampled blocks are known to the probes by address, so that frees
of all others need not be reported (``probes/heap.bpf.c``). Those recorded before would either stay
in the table for ever, or all their addresses would have to go to the kernel at the moment when
memory is short, and figures would be exact for some blocks and estimates for others. A sampled
trace is another trace: the last words say how to begin it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import closest_limit
from tracelloc.record.worker.client import workers_memory
from tracelloc.text import format_size

LEAST_BYTES: Final = 256 << 20
"""What the smallest of traces needs, and some room."""
_SHARE: Final = 4
"""One part in so many of what is available is the budget unless another one is given."""
_FOLD_SHARE: Final = 3 / 4
_FULL_SHARE: Final = 15 / 16
_WORKER_SHARE: Final = 4
"""One part in so many of the budget may be taken by each process that reads the target's files."""
_BEYOND: Final = 4
"""Times the budget that may be asked for."""
_UNKNOWN_BYTES: Final = 4 << 30
"""Available memory where nobody says how much there is."""


class MemoryStage(IntEnum):
    """What has been given up."""

    WHOLE = 0
    FOLDED = 1
    """New call stacks are cut."""
    FULL = 2
    """Tracing is to end."""


def default_budget() -> int:
    """Bytes: a quarter of what is available to this process."""
    limit = closest_limit(Process(os.getpid()))
    available = _UNKNOWN_BYTES if limit is None else limit.free_bytes
    return max(LEAST_BYTES, available // _SHARE)


def own_memory() -> int:
    """Resident bytes of this process, and of those that read the target's files."""
    return (Process(os.getpid()).rss_bytes() or 0) + workers_memory()


class MemoryBudget:
    """Looked at by one thread; ``when_full`` may be called by another one."""

    def __init__(
        self, limit_bytes: int | None = None, used_bytes: Callable[[], int] = own_memory
    ) -> None:
        """``limit_bytes``: None: ``default_budget``."""
        self.limit_bytes = default_budget() if limit_bytes is None else limit_bytes
        self.stage = MemoryStage.WHOLE
        self._used_bytes = used_bytes
        self._when_full: Callable[[str], None] | None = None
        self._last_words = ""

    @property
    def worker_bytes(self) -> int:
        """What each process that reads the target's files may take; beyond, that is missing."""
        return self.limit_bytes // _WORKER_SHARE

    @property
    def left_bytes(self) -> int:
        """What may still be taken."""
        return max(0, self.limit_bytes - self._used_bytes())

    def look(self) -> str | None:
        """What to say of a stage that was reached since the last look; None: nothing."""
        used = self._used_bytes()
        stage = MemoryStage.WHOLE
        if used >= self.limit_bytes * _FULL_SHARE:
            stage = MemoryStage.FULL
        elif used >= self.limit_bytes * _FOLD_SHARE:
            stage = MemoryStage.FOLDED
        if stage <= self.stage:
            return None
        # One after the other, however fast it grows: what is cut may be enough.
        stage = self.stage = MemoryStage(self.stage + 1)
        so_far = (
            f"tracelloc uses {format_size(used)} of the {format_size(self.limit_bytes)} it may "
            "(--max-memory)"
        )
        if stage is MemoryStage.FOLDED:
            return f"warning: {so_far}: new call stacks are cut to their innermost frames"
        self._last_words = (
            f"{so_far}: tracing ends here; with --sample 512k it keeps one block per 512 KiB "
            "instead of each"
        )
        if self._when_full is not None:
            self._when_full(self._last_words)
        return None

    def when_full(self, end: Callable[[str], None]) -> None:
        """Calls this with the reason when, or if by now, tracing is to end."""
        self._when_full = end
        if self.stage is MemoryStage.FULL:
            end(self._last_words)

    def enforce(self) -> None:
        """Has the kernel refuse what goes far beyond the budget."""
        own = Process(os.getpid())
        used = int((own._status_words("VmData") or ["0"])[0]) << 10
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # Names and files at the end take more than tracing does, for a moment.
        bound = used + _BEYOND * self.limit_bytes + LEAST_BYTES
        if soft == resource.RLIM_INFINITY or bound < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
