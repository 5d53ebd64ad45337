"""Reads facts about a process other than its heap, from /proc and from its memory.

Reading its memory may take long, and may never end. Every wait for it is bounded: what takes too
long is left out, or reported with its previous value. glibc stores a block's size beside the block:
it is read with no lock held, and once, as it never changes.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.heap.usable import (
    CHUNK_HEADER_BYTES,
    PAGE_BYTES,
    SMALLEST_CHUNK,
    chunk_bytes,
    main_library,
)
from tracelloc.model.blocks import Blocks, ReadSizes, UsableSizes
from tracelloc.model.figures import I64, U64, Mask, Rows
from tracelloc.model.process import FoundLibrary, MallocLibrary, MemoryUsage
from tracelloc.record.facets.facet import Facet
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import Residency
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.tasks.supervision import BoundedWork, Supervisor
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S

# Words at most this far apart are read together: copying the gap takes as long as a separate read.
_NEAR_BYTES: Final = 1024
_WINDOW_BITS: Final = 16  # One read stays within an aligned window of 64 KiB, which limits its size
_MOST_PIECES: Final = 1024  # Read before the clock is looked at again
# Unreadable places after which reading stops: each costs a system call.
_MOST_FAILURES: Final = 4096
_MAPPED: Final = 2
_FLAGS: Final = 7
# Largest plausible alignment: bytes by which a mapped chunk may exceed the request.
_MOST_PADDING: Final = 64 << 20


def read_chunks(
    memory: RemoteMemory, address: U64, size_bytes: U64, end_s: float
) -> tuple[U64, Mask]:
    """Reads glibc's sizes of blocks, by address, until ``end_s``: (usable bytes, mask read)."""
    usable = np.zeros(len(address), np.uint64)
    possible = np.flatnonzero((address & np.uint64(15)) == 0)
    words, was_read = read_words(memory, address[possible] - np.uint64(CHUNK_HEADER_BYTES), end_s)
    chunk = words & ~np.uint64(_FLAGS)
    least = chunk_bytes(size_bytes[possible])
    mapped = (words & np.uint64(_MAPPED)) != 0
    end = address[possible] - np.uint64(2 * CHUNK_HEADER_BYTES) + chunk
    slack = np.where(mapped, np.uint64(_MOST_PADDING), np.uint64(SMALLEST_CHUNK))
    fits = was_read & (chunk & np.uint64(15) == 0) & (chunk >= least) & (chunk - least <= slack)
    fits &= ~mapped | ((end & np.uint64(PAGE_BYTES - 1)) == 0)
    headers = np.where(mapped, np.uint64(16), np.uint64(CHUNK_HEADER_BYTES))
    usable[possible] = chunk - headers
    known = np.zeros(len(address), np.bool_)
    known[possible] = fits
    return usable, known


def read_words(memory: RemoteMemory, address: U64, end_s: float) -> tuple[U64, Mask]:
    """Reads 8-byte words at ascending multiples of 8: returns (words, mask of those read)."""
    words, was_read = _read_near(memory, address, _NEAR_BYTES, end_s)
    missing = np.flatnonzero(~was_read)
    if len(missing):
        # Memory between two words may be unmapped while they are not.
        words[missing], was_read[missing] = _read_near(memory, address[missing], 0, end_s)
    return words, was_read


def _read_near(
    memory: RemoteMemory, address: U64, near_bytes: int, end_s: float
) -> tuple[U64, Mask]:
    words, was_read = np.zeros(len(address), np.uint64), np.zeros(len(address), np.bool_)
    first, last = _pieces(address, near_bytes)
    pieces = np.stack([address[first], address[last] - address[first] + np.uint64(8)], axis=1)
    at = failures = 0
    while at < len(pieces) and failures < _MOST_FAILURES and time.monotonic() < end_s:
        some = slice(at, at + _MOST_PIECES)
        starts = np.cumsum(pieces[some, 1]) - pieces[some, 1]
        buffer = np.empty(int(pieces[some, 1].sum()) // 8, np.uint64)
        try:
            got = memory.read_pieces(pieces[some], buffer, starts.astype(np.int64) // 8)
        except (TargetError, PrivilegeError):  # What was read before counts
            break
        rows, lengths = slice(first[at], last[some][-1] + 1), last[some] - first[some] + 1
        shift = np.repeat(starts - pieces[some, 0], lengths)
        words[rows] = buffer[(address[rows] + shift) >> np.uint64(3)]
        was_read[rows] = np.repeat(got, lengths)
        failures += int(np.count_nonzero(~got))
        at += _MOST_PIECES
    return words, was_read


def _pieces(address: U64, near_bytes: int) -> tuple[Rows, Rows]:
    """Returns (first, last) rows of each group of addresses that is read together."""
    if not len(address):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    apart = np.diff(address) > np.uint64(near_bytes)
    apart |= np.diff(address >> np.uint64(_WINDOW_BITS)) != 0
    begins = np.flatnonzero(apart) + 1
    return np.concatenate([[0], begins]), np.concatenate([begins, [len(address)]]) - 1


LONGEST_S: Final = 0.25  # Time limit of one reading; the remaining blocks are read the next time
# Births have the resolution of a timer tick, in which several blocks may have had one address.
_YOUNG_NS: Final = NS_PER_S // 10
# Blocks of at least this size are read first: the request does not tell how they were made.
_LARGE_BYTES: Final = 128 << 10


class UsableSizeReader:
    """Finds usable sizes of one process's blocks. Slow: call it without the session's lock."""

    def __init__(self, space: AddressSpace) -> None:
        self._space, self._memory = space, RemoteMemory(space.process)
        self._read = ReadSizes()

    def measured(self, snapshot: Snapshot, longest_s: float = LONGEST_S) -> Snapshot:
        """Returns a snapshot with usable sizes of its blocks, if it has blocks."""
        if snapshot.blocks is None:
            return snapshot
        blocks = snapshot.blocks
        mapped = {module.path for module in self._space.mapped_modules}
        # Programs that the process executed before may have had other malloc libraries.
        found = [a for a in snapshot.allocators if a.file in mapped] or snapshot.allocators
        return replace(snapshot, usable=self.measure(blocks, snapshot.now_ns, found, longest_s))

    def measure(
        self,
        blocks: Blocks,
        now_ns: int,
        found: Iterable[FoundLibrary],
        longest_s: float = LONGEST_S,
    ) -> UsableSizes | None:
        """Returns usable sizes of blocks live at ``now_ns``; None without a malloc library."""
        main = main_library(found)
        if main is None:
            return None
        if main.library is MallocLibrary.GLIBC:
            read = self._read_more(blocks, longest_s)
            born_before = np.uint64(max(0, now_ns - _YOUNG_NS))
            self._read = read.select(read.birth_ns < born_before)
            return UsableSizes(main, read)
        is_unusual = main.library is MallocLibrary.JEMALLOC and _is_finer(blocks)
        return UsableSizes(main, ReadSizes(), is_unusual)

    def _read_more(self, blocks: Blocks, longest_s: float) -> ReadSizes:
        there, sizes = self._read.find(blocks)
        large = blocks.size >= np.uint64(_LARGE_BYTES)
        process = self._space.process
        thread = Process(process.thread_id, process.root)
        if self._memory.process != thread:
            self._memory = RemoteMemory(thread)
        self._memory.look_for_shared()
        end_s = time.monotonic() + longest_s
        for chosen in (~there & large, ~there & ~large):
            rows = np.flatnonzero(chosen)
            rows = rows[np.argsort(blocks.address[rows])]
            found = read_chunks(self._memory, blocks.address[rows], blocks.size[rows], end_s)
            sizes[rows], there[rows] = found
        rows = np.flatnonzero(there)
        rows = rows[np.argsort(blocks.address[rows])]
        return ReadSizes(blocks.address[rows], blocks.birth_ns[rows], sizes[rows])


def _is_finer(blocks: Blocks) -> bool:
    """Whether a jemalloc has size classes 8 bytes apart (``--with-lg-quantum=3``), not 16."""
    return bool(((blocks.address & np.uint64(15) != 0) & (blocks.size > np.uint64(8))).any())


# Names of a process's threads, including those that have ended.

_MOST_AT_ONCE: Final = 64  # Most names read at a time


class ThreadNames:
    """Names of a process's threads, read as soon as a thread is seen in events."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._names: dict[int, str] = {}
        self.seen = 0  # How many of the ids were looked at

    def read_new(self, tids: I64) -> None:
        """Reads the names of new threads; ``tids`` has only grown at its end since last time."""
        new = tids[self.seen : self.seen + _MOST_AT_ONCE].tolist()
        self.seen += len(new)
        for tid in new:
            if (name := self._process.thread_name(tid)) is not None:
                self._names[tid] = name

    def all(self) -> dict[int, str]:
        """Returns names by thread id; reads those of current threads again. Thread safe."""
        self._names.update(self._process.thread_names())
        return dict(self._names)


# How long a snapshot waits for a facet that it wants: enough to count 30 million objects.
_FACET_PATIENCE_S: Final = 10.0
_PATIENCE_S: Final = 3.0

_T = TypeVar("_T")
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts about a process from /proc: memory and thread names."""

    # Resident bytes, without tracelloc's own memory; None once the process has ended.
    rss_bytes: int | None = None
    memory: MemoryUsage | None = None
    # Names of threads by thread id; empty unless wanted.
    thread_names: Mapping[int, str] = field(default_factory=dict)


class ProcessFactReader:
    """Reads facts about one process from /proc, on the thread that takes snapshots."""

    def __init__(self, space: AddressSpace, supervisor: Supervisor) -> None:
        self._process, self._supervisor = space.process, supervisor
        self.thread_names = ThreadNames(space.process)
        self._measuring = UsableSizeReader(space)
        self._works: dict[str, BoundedWork] = {}
        self._last = ProcessFacts()
        self.begin_image()

    def begin_image(self) -> None:
        """Forgets all facts, after the process has executed a program."""
        self.residency = Residency(self._process)
        self.thread_names.seen = 0

    def _bounded(
        self, task: str, work: Callable[[], _T], patience_s: float, *, gives_up: bool = False
    ) -> _T | None:
        """Returns the result of ``work``; None if it failed, takes too long or is overdue."""
        bounded = self._works.setdefault(task, BoundedWork(task))
        if bounded.is_overdue:
            return None
        run = partial(bounded.run, work, patience_s)
        return self._supervisor.run(task, self._process.pid, run, gives_up=gives_up)

    def refresh(self, facet: Facet[Any]) -> None:
        """Has a facet inspect again for a snapshot; if this takes too long, the result stays."""
        self._bounded(facet.task, facet.refresh, _FACET_PATIENCE_S, gives_up=True)

    def read_facts(self, mapped: Ranges | None, ours: Ranges, *, with_names: bool) -> ProcessFacts:
        """Reads facts now, within time limits. ``mapped``, ``ours``: see ``Residency``."""

        def read() -> ProcessFacts:
            usage = self.residency.read_usage(mapped, ours)
            names = self.thread_names.all() if with_names else {}
            return ProcessFacts(self.rss_bytes(), usage, names)

        # The kernel answers at once, whatever the process does.
        pid = self._process.pid
        read_now = self._supervisor.run("reading memory usage", pid, read, gives_up=False)
        self._last = read_now or self._last
        return self._last

    def rss_bytes(self) -> int | None:
        """Returns resident bytes, without tracelloc's own memory; None once it has ended."""
        rss_bytes = self._process.rss_bytes()
        return None if rss_bytes is None else max(0, rss_bytes - self.residency.our_bytes)

    def measured(self, snapshot: Snapshot, longest_s: float = LONGEST_S) -> Snapshot:
        """Returns a snapshot with usable sizes of blocks; reads for at most ``longest_s``."""
        measure = partial(self._measuring.measured, snapshot, longest_s)
        return self._bounded("reading block sizes", measure, _PATIENCE_S) or snapshot
