"""Where a search for lost blocks begins: memory outside the heap, registers, and the kernel.

What lies between the blocks of a heap is no root: pointers in free memory are stale, and the malloc
library's own lists lead to free blocks. Neither is a stack below its stack pointer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass, field
from tracelloc.errors import TracellocError
from tracelloc.record.heapwalk.arenas import WalkedHeap
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.kernel.registers import RegisterReader
from tracelloc.record.process.memory import U64
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region
from tracelloc.record.reachability.deadmemory import ended_stacks

_EPOLL_DATA: Final = re.compile(r"^tfd:.* data: *([0-9a-f]+)", re.MULTILINE)  # proc_pid_fdinfo(5)
# proc_pid_timers(5).
_TIMER_VALUE: Final = re.compile(r"^signal: *\d+/(?:0x)?([0-9a-f]+)", re.MULTILINE)

# Requests that a ring has taken, and those that it has completed (io_uring/fdinfo.c)
_RING_ENDS: Final = re.compile(r"^Cached(?:SqHead|CqTail):\s*(\d+)", re.MULTILINE)

Ranges = Sequence[tuple[int, int]]  # Start and end addresses

QUIET, DEAD, ROOT = 1, 2, 0  # Only pointers in blocks count; none count; all count


@dataclass(slots=True)
class MemoryKinds:
    """Address ranges by kind: ``kinds[n]`` from ``cuts[n]`` to ``cuts[n + 1]``."""

    cuts: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=lambda: [ROOT])

    @classmethod
    def merge(cls, quiet: Ranges, dead: Ranges, roots: Ranges = ()) -> MemoryKinds:
        """Merges ranges, which may overlap: dead before roots; memory outside of all is a root."""
        edges = sorted(
            (at, kind, step)
            for kind, ranges in ((QUIET, quiet), (DEAD, dead), (ROOT, roots))
            for start, end in ranges
            if start < end
            for at, step in ((start, 1), (end, -1))
        )
        found = cls()
        depth = {QUIET: 0, DEAD: 0, ROOT: 0}
        for at, kind, step in edges:
            depth[kind] += step
            now = DEAD if depth[DEAD] else QUIET if depth[QUIET] and not depth[ROOT] else ROOT
            if at == found.cuts[-1]:
                found.kinds[-1] = now
            elif now != found.kinds[-1]:
                found.cuts.append(at)
                found.kinds.append(now)
        return found

    def without(self, ranges: Ranges) -> MemoryKinds:
        pieces = list(zip(self.cuts, [*self.cuts[1:], 1 << 64], self.kinds, strict=True))
        quiet, dead = (
            [(start, end) for start, end, kind in pieces if kind == wanted]
            for wanted in (QUIET, DEAD)
        )
        return MemoryKinds.merge(quiet, [*dead, *ranges])

    def split(self, runs: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Splits sorted ranges by kind: yields (start, end, kind)."""
        cuts = [*self.cuts, 1 << 64]
        at = 0
        for start, end in runs:
            while cuts[at + 1] <= start:
                at += 1
            begin = start
            while cuts[at + 1] < end:
                yield begin, cuts[at + 1], self.kinds[at]
                at += 1
                begin = cuts[at]
            yield begin, end, self.kinds[at]


def kinds_of(
    process: Process,
    reader: PieceReader,
    heap: WalkedHeap | None,
    unused: Ranges,
    roots: Ranges = (),
) -> MemoryKinds:
    """Returns which memory is a root; ``unused`` parts are not, ``roots`` of the heap are."""
    regions = reader.regions()
    return MemoryKinds.merge(
        [stretch for arena in heap.arenas for stretch in arena.stretches()] if heap else [],
        [
            *(heap.metadata if heap else ()),
            *unused,
            *dead_stacks(process, regions),
            *ended_stacks(reader, regions),
        ],
        roots,
    )


def dead_stacks(process: Process, regions: list[Region]) -> list[tuple[int, int]]:
    """Returns parts of guarded stacks below the pointers of threads that wait in the kernel."""
    starts = np.array([region.start for region in regions], np.uint64)
    red_zone_bytes = native().red_zone_bytes
    found = []
    for pointer in process.stack_pointers():
        at = int(np.searchsorted(starts, np.uint64(pointer), side="right")) - 1
        if at < 0 or pointer >= regions[at].end:
            continue
        region, before = regions[at], regions[at - 1] if at else None
        is_guarded = before and before.end == region.start and before.rights.startswith("---")
        if region.path == "[stack]" or is_guarded:
            found.append((region.start, max(region.start, (pointer - red_zone_bytes) & ~7)))
    return found


def kernel_words(process: Process) -> U64:
    """Returns words that a program has given to the kernel: data of epoll(7), timers' values."""
    return np.concatenate(list(kernel_words_by_kind(process).values()))


def kernel_words_by_kind(process: Process) -> dict[str, U64]:
    """Returns words that a program has given to the kernel, by the object that holds them."""
    data: list[str] = []
    values: list[str] = []
    with suppress(OSError):
        for entry in (process.directory / "fdinfo").iterdir():
            with suppress(OSError):
                data += _EPOLL_DATA.findall(entry.read_text())
    with suppress(OSError):
        values += _TIMER_VALUE.findall((process.directory / "timers").read_text())
    return {
        name: np.array([int(word, 16) & (1 << 64) - 1 for word in found], np.uint64)
        for name, found in (("epoll(7)", data), ("timers", values))
    }


def kernel_queue(process: Process) -> str:
    """Returns the queue with a program's unreadable requests in the kernel; empty if none.

    The only pointer to a block may be in a request that is under way: in the user_data of io_uring
    (io_uring(7)), or the aio_data of AIO (io_submit(2)). A ring without such requests is none.
    """
    with suppress(OSError):
        for entry in (process.memory_directory / "fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()) != "anon_inode:[io_uring]":
                    continue
                text = (process.memory_directory / "fdinfo" / entry.name).read_text()
                if len(set(_RING_ENDS.findall(text))) != 1:  # taken, but not all completed
                    return "io_uring"
    with suppress(TracellocError):
        if "/[aio]" in process.maps_text():
            return "AIO"
    return ""


class RootWords:
    """Reads the roots that are not in a process's memory: registers, and what the kernel holds."""

    def __init__(self, *, debug: bool = False) -> None:
        self.missing = ""
        """Why registers can't be read; empty if they can."""
        self._registers: RegisterReader | None = None
        try:
            self._registers = RegisterReader(debug=debug)
        except TracellocError as error:
            self.missing = error.message

    def read(self, process: Process) -> U64:
        """Reads all words of registers and of the kernel now."""
        words = kernel_words(process)
        if self._registers is not None:
            try:
                threads = self._registers.read(process)
            except OSError as error:
                self.missing = error.strerror or str(error)
            else:
                words = np.concatenate([words, threads.words])
                if not threads.threads:
                    self.missing = "the kernel shows no thread of it"
        return words

    def close(self) -> None:
        if self._registers is not None:
            self._registers.close()
