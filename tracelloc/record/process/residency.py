"""Measures a process's memory by kind.

Kinds are those of ``/proc/PID/status`` (proc_pid_status(5): RssAnon, RssFile, RssShmem, VmSwap),
which the kernel counts: reading them costs nothing, however large the process is. The proportional
share (Pss of ``/proc/PID/smaps_rollup``) must be added up page by page, so tracelloc reads it
rarely: at most 1 % of the time. The same holds for the resident part of ranges that the process
itself has mapped (``/proc/PID/pagemap``: 64 bits per page; bit 63 means in memory, bit 62 swapped
out; Linux, Documentation/admin-guide/mm/pagemap.rst).
"""

import mmap
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracelloc.errors import PrivilegeError
from tracelloc.model.process import MemoryUsage, ResidentMemory
from tracelloc.record.process.memory import PRESENT, SWAPPED, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.system.memorylimits import closest_limit, numbers_in
from tracelloc.text import NS_PER_S

Ranges = Sequence[tuple[int, int]]  # Start and end addresses, in whole pages

_COST: Final = 100  # Reading pages takes at most 1 / `_COST` of the time
_PSS_EVERY_NS: Final = 5 * NS_PER_S
_PAST_EVERY_NS: Final = 5 * NS_PER_S
_PAST_LENGTH: Final = 60
# Fields of `/proc/PID/status`, in the order of the fields of `ResidentMemory`.
_KINDS: Final = ("RssAnon", "RssFile", "RssShmem", "VmSwap", "VmSize")


class Residency:
    """Reads one process's memory usage by kind. Thread safe."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._start: ResidentMemory | None = read_resident(process)
        self.our_bytes = 0  # Resident bytes of memory shared with tracelloc, at the last reading
        self.last: MemoryUsage | None = None
        self._pss_bytes: int | None = None
        self._mapped_bytes: int | None = None
        self._pss_due_ns = self._mapped_due_ns = 0
        self._history: deque[tuple[int, int]] = deque(maxlen=_PAST_LENGTH)

    def restart(self) -> None:
        """Makes the current memory the start value, from which growth is counted."""
        with self._lock:
            self._start = read_resident(self._process)

    def read_usage(self, mapped: Ranges | None = None, ours: Ranges = ()) -> MemoryUsage | None:
        """Returns the memory usage now; once the process has ended, the last known one.

        ``mapped``: ranges that the process itself has mapped; None if not traced. ``ours``: memory
        shared with tracelloc only, which is left out.
        """
        with self._lock:
            now = read_resident(self._process)
            if now is None or self._start is None:
                return self.last
            self.our_bytes = (kept_bytes(self._process, ours) or 0) if ours else 0
            now = replace(now, shared=max(0, now.shared - self.our_bytes))
            now_ns = time.monotonic_ns()
            if now_ns >= self._pss_due_ns:
                self._pss_bytes = read_pss(self._process)
                took_ns = time.monotonic_ns() - now_ns
                self._pss_due_ns = now_ns + max(_PSS_EVERY_NS, _COST * took_ns)
            if not self._history or now_ns - self._history[-1][0] >= _PAST_EVERY_NS:
                self._history.append((now_ns, now.kept))
            limit, mapped_bytes = (
                closest_limit(self._process.directory),
                self._look_at(mapped, now_ns),
            )
            self.last = MemoryUsage(
                now=now, start=self._start, pss_bytes=self._pss_bytes, limit=limit,
                history=tuple(self._history), mapped_bytes=mapped_bytes,
            )  # fmt: skip
            return self.last

    def _look_at(self, mapped: Ranges | None, now_ns: int) -> int | None:
        """Returns resident and swapped bytes of ranges; some seconds old if pages are many."""
        if mapped is None:
            return None
        if now_ns >= self._mapped_due_ns:
            began_ns = time.monotonic_ns()
            self._mapped_bytes = kept_bytes(self._process, mapped)
            self._mapped_due_ns = now_ns + _COST * (time.monotonic_ns() - began_ns)
        return self._mapped_bytes


def read_resident(process: Process) -> ResidentMemory | None:
    """Returns a process's memory by kind; None once the process is gone."""
    kinds = numbers_in(process.memory_directory / "status")
    sizes = (kinds.get(name, 0) << 10 for name in _KINDS)
    return ResidentMemory(*sizes) if "RssAnon" in kinds else None


def read_pss(process: Process) -> int | None:
    """Returns a process's proportional set size in bytes; None if it can't be read."""
    kib = numbers_in(process.memory_directory / "smaps_rollup").get("Pss")
    return None if kib is None else kib << 10


_CHUNK_BYTES: Final = mmap.PAGESIZE << 16  # Addresses whose pages are read at a time
# Most pages read in total: 16 GiB of addresses, some 20 ms. Reserved but hardly used ranges may be
# far larger.
MOST_PAGES: Final = 1 << 22


def kept_bytes(process: Process, ranges: Iterable[tuple[int, int]]) -> int | None:
    """Returns how many bytes of ranges (start, end; whole pages) are in memory or swap.

    Small ranges count first; pages beyond ``MOST_PAGES`` are left out, so the result is then a
    lower bound. None if the process has ended or access is denied.
    """
    pages, left = 0, MOST_PAGES * mmap.PAGESIZE
    try:
        memory = RemoteMemory(Process(process.thread_id, process.root))
        for start, end in sorted(ranges, key=lambda each: each[1] - each[0]):
            last = min(end, start + left)
            left -= last - start
            for at in range(start, last, _CHUNK_BYTES):
                kept = memory.pages(at, min(at + _CHUNK_BYTES, last), PRESENT | SWAPPED)
                pages += int(np.count_nonzero(kept))
    except (OSError, PrivilegeError):
        return None
    return pages * mmap.PAGESIZE
