"""Measures a process's memory by kind, and the limits on it.

Kinds are those of ``/proc/PID/status`` (proc_pid_status(5): RssAnon, RssFile, RssShmem,
VmSwap), which the kernel counts: reading them costs nothing, however large the
process is. The proportional share (Pss of ``/proc/PID/smaps_rollup``) must be added up
page by page, so tracelloc reads it rarely: at most 1 % of the time. The same holds for the
resident part of ranges that the process itself has mapped (``/proc/PID/pagemap``:
64 bits per page; bit 63 means in memory, bit 62 swapped out;
Linux, Documentation/admin-guide/mm/pagemap.rst).

Limits are those of the memory controller of cgroups, version 2 (memory.max, the kernel's
cgroup-v2.rst) or 1 (memory.limit_in_bytes, cgroup-v1/memory.rst), of the process's own
group and its ancestors, and the machine's memory (proc_meminfo(5)). Page cache that can be
dropped (inactive_file) does not count as used.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tracelloc.model.process import (
    Limit,
    MemoryUsage,
    Resident,
)
from tracelloc.record.process.procfs import PROC, Process
from tracelloc.text import NS_PER_S

Ranges = Sequence[tuple[int, int]]
"""Start and end addresses, in whole pages."""

CGROUPS: Final = Path("/sys/fs/cgroup")
_COST: Final = 100
"""Reading pages takes at most 1 / ``_COST`` of the time."""
_PSS_EVERY_NS: Final = 5 * NS_PER_S
_UNLIMITED: Final = 1 << 62
"""cgroup version 1 reports no limit as a number nearly this large."""
_PAST_EVERY_NS: Final = 5 * NS_PER_S
_PAST_LENGTH: Final = 60
_KINDS: Final = ("RssAnon", "RssFile", "RssShmem", "VmSwap", "VmSize")
"""Fields of ``/proc/PID/status``, in the order of the fields of ``Resident``."""


class Residency:
    """Reads the memory usage of one process. Thread safe."""

    def __init__(
        self,
        process: Process,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cgroups: Path = CGROUPS,
    ) -> None:
        self._process = process
        self._clock_ns = clock_ns
        self._cgroups = cgroups
        self._lock = threading.Lock()
        self._start: Resident | None = read_resident(process)
        self.our_bytes = 0
        """What tracelloc itself had resident in it at the last look."""
        self.last: MemoryUsage | None = None
        """The memory usage at the last look."""
        self._pss_bytes: int | None = None
        self._pss_due_ns = 0
        self._mapped_bytes: int | None = None
        self._mapped_due_ns = 0
        self._history: deque[tuple[int, int]] = deque(maxlen=_PAST_LENGTH)

    def restart(self) -> None:
        """Counts growth from now on."""
        with self._lock:
            self._start = read_resident(self._process)

    def read_usage(self, mapped: Ranges | None = None, ours: Ranges = ()) -> MemoryUsage | None:
        """Returns the memory usage now; once the process has ended, the last one.

        ``mapped`` are ranges that the process itself has mapped, if traced. ``ours`` is shared
        memory that it has only for tracelloc, which is left out.
        """
        with self._lock:
            now = read_resident(self._process)
            if now is None or self._start is None:
                return self.last
            self.our_bytes = (kept_bytes(self._process, ours) or 0) if ours else 0
            now = replace(now, shared=max(0, now.shared - self.our_bytes))
            now_ns = self._clock_ns()
            if now_ns >= self._pss_due_ns:
                began_ns = time.monotonic_ns()
                self._pss_bytes = read_pss(self._process)
                took_ns = time.monotonic_ns() - began_ns
                self._pss_due_ns = now_ns + max(_PSS_EVERY_NS, _COST * took_ns)
            if not self._history or now_ns - self._history[-1][0] >= _PAST_EVERY_NS:
                self._history.append((now_ns, now.kept))
            self.last = MemoryUsage(
                now=now,
                start=self._start,
                pss_bytes=self._pss_bytes,
                limit=closest_limit(self._process, self._cgroups),
                history=tuple(self._history),
                mapped_bytes=self._look_at(mapped, now_ns),
            )
            return self.last

    def _look_at(self, mapped: Ranges | None, now_ns: int) -> int | None:
        """Returns the bytes kept of these ranges, some seconds old if there are many pages."""
        if mapped is None:
            return None
        if now_ns >= self._mapped_due_ns:
            began_ns = time.monotonic_ns()
            self._mapped_bytes = kept_bytes(self._process, mapped)
            self._mapped_due_ns = now_ns + _COST * (time.monotonic_ns() - began_ns)
        return self._mapped_bytes


def read_resident(process: Process) -> Resident | None:
    """Returns memory by kind; None once the process is gone."""
    kinds = _numbers(process.memory_directory / "status")
    if "RssAnon" not in kinds:
        return None
    sizes = [kinds.get(name, 0) << 10 for name in _KINDS]
    return Resident(*sizes)


def read_pss(process: Process) -> int | None:
    """Returns the proportional share in bytes; None if it can't be read."""
    kib = _numbers(process.memory_directory / "smaps_rollup").get("Pss")
    return None if kib is None else kib << 10


def closest_limit(process: Process, cgroups: Path = CGROUPS) -> Limit | None:
    """Returns the limit with the least free memory; None if none can be read."""
    limits = list(_group_limits(process, cgroups))
    machine = _numbers(process.root / "meminfo") or _numbers(PROC / "meminfo")
    if "MemAvailable" in machine:
        limits.append(Limit("machine", machine["MemTotal"] << 10, machine["MemAvailable"] << 10))
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def _group_limits(process: Process, cgroups: Path) -> Iterator[Limit]:
    for line in _text(process.directory / "cgroup").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            names = "memory.max", "memory.current", "inactive_file"
            roots = [cgroups, cgroups / "unified"]
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            roots = [cgroups / "memory"]
        else:
            continue
        parts = [part for part in path.split("/") if part]
        if ".." in parts:  # outside of the visible part of this cgroup namespace
            parts = []
        for root in roots:
            for depth in range(len(parts), -1, -1):
                limit = _group_limit(root.joinpath(*parts[:depth]), *names)
                if limit is not None:
                    yield limit


def _group_limit(group: Path, limit: str, used: str, cache: str) -> Limit | None:
    size, usage = _number(group / limit), _number(group / used)
    if size is None or usage is None or size >= _UNLIMITED:
        return None
    droppable = _numbers(group / "memory.stat").get(cache, 0)
    return Limit("cgroup", size, max(0, size - max(0, usage - droppable)))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _numbers(path: Path) -> dict[str, int]:
    """Parses lines ``name: number unit`` or ``name number``."""
    found = {}
    for line in _text(path).split("\n"):
        words = line.split()
        if len(words) >= 2 and words[1].isascii() and words[1].isdigit():
            found[words[0].removesuffix(":")] = int(words[1])
    return found


_ENTRY_BYTES: Final = 8
_KEPT_SHIFT: Final = np.uint64(62)
_CHUNK: Final = 1 << 16
"""Pages read at a time."""
MOST_PAGES: Final = 1 << 22
"""Most pages read in total: 16 GiB of addresses, some 20 ms. Reserved but hardly used ranges
may be far larger."""


def kept_bytes(process: Process, ranges: Iterable[tuple[int, int]]) -> int | None:
    """Returns the bytes of these ranges in memory or swap (start, end; whole pages).

    Small ranges count first; pages beyond ``MOST_PAGES`` are left out, so the result is then a
    lower bound. None if the process has ended or access is denied.
    """
    pages, left = 0, MOST_PAGES
    try:
        fd = os.open(process.memory_directory / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, end in sorted(ranges, key=lambda each: each[1] - each[0]):
                first, last = start // mmap.PAGESIZE, end // mmap.PAGESIZE
                last = min(last, first + left)
                left -= last - first
                pages += _kept_pages(fd, first, last)
        finally:
            os.close(fd)
    except OSError:
        return None
    return pages * mmap.PAGESIZE


def _kept_pages(fd: int, first: int, last: int) -> int:
    kept = 0
    for page in range(first, last, _CHUNK):
        count = min(_CHUNK, last - page)
        words = os.pread(fd, count * _ENTRY_BYTES, page * _ENTRY_BYTES)
        whole = len(words) // _ENTRY_BYTES
        entries = np.frombuffer(words, np.uint64, whole)
        kept += int(np.count_nonzero(entries >> _KEPT_SHIFT))
    return kept
