"""Figures as columns: by call stack, by thread, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, fields

NS_PER_S: Final = 1_000_000_000

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

COUNT_PARTS: Final = 1024  # Parts per block: the unit of sampled counts


@dataclass(slots=True)
class Totals:
    """Totals per call stack: one array per figure. Bytes are as requested, counts are blocks.

    Outstanding = allocated - freed, always. Of the freed blocks, ``temporary`` were freed soon
    after by the allocating thread, ``remote`` by another thread. ``peak_bytes`` is the largest
    outstanding figure at the end of a batch (a lower bound of the true peak). ``first_ns`` and
    ``last_ns`` are CLOCK_MONOTONIC times of the first and the newest allocation, 0 if there was
    none.
    """

    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64
    freed_count: I64
    temporary_bytes: I64
    temporary_count: I64
    remote_bytes: I64
    remote_count: I64
    peak_bytes: I64
    first_ns: I64
    last_ns: I64
    # Mean distance of samples in bytes; None: not sampled. If set, each block counts for the blocks
    # it stands for: bytes are scaled, and counts are in parts of `COUNT_PARTS` until `whole`.
    sample_bytes: int | None = None

    @classmethod
    def empty(cls, stacks: int = 1, sample_bytes: int | None = None) -> Totals:
        columns: dict[str, Any] = {name: np.zeros(stacks, np.int64) for name in COLUMNS}
        return cls(**columns, sample_bytes=sample_bytes)

    def __len__(self) -> int:
        return len(self.allocated_bytes)

    def copy(self, stacks: int | None = None) -> Totals:
        """Returns an independent copy of the first ``stacks`` stacks' totals (default: all)."""
        columns: dict[str, Any] = {n: getattr(self, n)[:stacks].copy() for n in COLUMNS}
        return Totals(**columns, sample_bytes=self.sample_bytes)

    def fork(self) -> Totals:
        """Returns totals as if only the outstanding blocks had ever been allocated."""
        child = Totals.empty(len(self), self.sample_bytes)
        child.allocated_bytes, child.allocated_count = self.live_bytes, self.live_count
        for name in ("peak_bytes", "first_ns", "last_ns"):
            setattr(child, name, getattr(self, name).copy())
        return child

    def whole(self, stacks: int) -> Totals:
        """Returns a copy of the first ``stacks`` stacks' totals, with counts in whole blocks."""
        copy = self.copy(stacks)
        if self.sample_bytes is not None:
            live = _rounded(copy.live_count)
            for name in COLUMNS:
                if name.endswith("_count"):
                    setattr(copy, name, _rounded(getattr(copy, name)))
            copy.allocated_count = copy.freed_count + live
        return copy

    @property
    def live_bytes(self) -> I64:
        return self.allocated_bytes - self.freed_bytes

    @property
    def live_count(self) -> I64:
        return self.allocated_count - self.freed_count

    @property
    def temporary_share(self) -> npt.NDArray[np.float64]:
        return self.temporary_count / np.maximum(self.allocated_count, 1)

    def grow(self, stacks: int) -> None:
        old = len(self)
        if stacks <= old:
            return
        room = max(stacks, 2 * old, 64)
        for name in COLUMNS:
            column = np.zeros(room, np.int64)
            column[:old] = getattr(self, name)
            setattr(self, name, column)

    def whole_counts(self, parts: I64) -> I64:
        """Converts counts per stack, in the unit of these totals, to whole blocks."""
        return parts if self.sample_bytes is None else _rounded(parts)

    def whole_number(self, parts: int) -> int:
        return int(self.whole_counts(np.array([parts], np.int64))[0])


COLUMNS: Final = tuple(f.name for f in fields(Totals) if f.name != "sample_bytes")


def resized(figures: I64, stacks: int) -> I64:
    """Returns a copy of the figures of the first ``stacks`` stacks; 0 for missing stacks."""
    copy = np.zeros(stacks, np.int64)
    known = figures[:stacks]
    copy[: len(known)] = known
    return copy


def _rounded(parts: I64) -> I64:
    return (parts + COUNT_PARTS // 2) // COUNT_PARTS


@dataclass(frozen=True, slots=True)
class Peak:
    """The high-water mark: the time when most bytes were outstanding.

    Events are applied in order: an allocation counts from its return, a free from its call. A
    block that is being resized counts as freed meanwhile. Columns are indexed by stack; stacks
    that came after the peak are missing at the end.
    """

    time_ns: int  # Time of the peak, CLOCK_MONOTONIC, at the kernel's last tick
    size_bytes: int  # Outstanding bytes of all stacks
    live_bytes: I64
    live_count: I64  # Outstanding blocks; if sampled, in parts of blocks (see `Totals`)


SAMPLES: Final = 32  # Most samples kept; even
_FIRST_DISTANCE_NS: Final = NS_PER_S


class History:
    """Outstanding bytes per stack at past times, CLOCK_MONOTONIC.

    The number of samples is bounded: one per second at first. If there is no room for another one,
    every second sample is dropped and the interval doubles. So the samples always cover the whole
    traced time, with at least half of them in use, at up to 256 bytes per stack. A sample is never
    modified, so copies share them.
    """

    def __init__(self, start_ns: int, live_bytes: I64 | None = None) -> None:
        """``live_bytes``: outstanding bytes at the start, per stack; None if there were none."""
        self._distance_ns = _FIRST_DISTANCE_NS
        self._next_ns = start_ns + self._distance_ns
        self._times = [start_ns]
        # By time, then by stack; stacks that came later are missing at the end
        self._held = [np.zeros(0, np.int64) if live_bytes is None else live_bytes]

    @classmethod
    def from_samples(cls, times_ns: list[int], held: list[I64]) -> History:
        history = cls(times_ns[0])
        history._times, history._held = times_ns, held
        return history

    def __len__(self) -> int:
        return len(self._times)

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def sample(self, now_ns: int, live_bytes: I64) -> None:
        """Adds a sample: live bytes per stack. The array must not change afterwards."""
        if len(self._times) == SAMPLES:
            self._times, self._held = self._times[::2], self._held[::2]
            self._distance_ns *= 2
        self._held.append(live_bytes)
        self._times.append(now_ns)
        # Missed samples are not taken later.
        self._next_ns = max(self._next_ns + self._distance_ns, now_ns + 1)

    def growth_per_min(self, now_ns: int, live_bytes: I64, over_ns: int = 60 * NS_PER_S) -> I64:
        """Returns growth since the newest sample of at least this age, or since the start."""
        at = max(n for n, ns in enumerate(self._times) if n == 0 or now_ns - ns >= over_ns)
        elapsed_ns = max(1, now_ns - self._times[at])
        grown = live_bytes.astype(np.float64)
        before = self._held[at][: len(grown)]
        grown[: len(before)] -= before
        return np.rint(grown * (60.0 * NS_PER_S / elapsed_ns)).astype(np.int64)

    def add_before(self, live_bytes: I64) -> None:
        """Adds to each sample bytes per stack that were live since the start but found only now.

        All samples become 1 ns later, so that a recording, which has samples by time, stores the
        corrected ones as new.
        """
        added = []
        for held in self._held:
            larger = resized(held, max(len(held), len(live_bytes)))
            larger[: len(live_bytes)] += live_bytes
            added.append(larger)
        self._held = added
        self._times = [time_ns + 1 for time_ns in self._times]

    @property
    def times_ns(self) -> list[int]:
        return list(self._times)

    def at(self, time_ns: int) -> I64:
        """Returns the live bytes per stack at a sample's time, which is one of ``times_ns``."""
        return self._held[self._times.index(time_ns)]

    def total(self) -> tuple[list[int], list[int]]:
        """Returns (times in ns, outstanding bytes of all stacks at these times), oldest first."""
        return list(self._times), [int(held.sum()) for held in self._held]

    def copy(self) -> History:
        copy = History(self._times[0])
        copy._times, copy._held = list(self._times), list(self._held)
        return copy

    def held(self) -> tuple[list[int], I64]:
        """Returns (times in ns, bytes): a row per time, a column per stack, without new ones."""
        table = np.zeros((len(self._times), max(map(len, self._held))), np.int64)
        for row, held in zip(table, self._held, strict=True):
            row[: len(held)] = held
        return list(self._times), table

    def series(self, stacks: int | I64) -> tuple[list[int], list[int]]:
        """Returns (times in ns, sum of the outstanding bytes of some stacks), oldest first."""
        rows = np.atleast_1d(stacks)
        held = [int(held[rows[rows < len(held)]].sum()) for held in self._held]
        return list(self._times), held


@dataclass(frozen=True, slots=True)
class HeapPoints:
    """The heap, RSS, kept memory and a runtime's objects: equally long columns, oldest first."""

    time_ns: I64  # Times, CLOCK_MONOTONIC. The first is the start of tracing.
    live_bytes: I64  # Outstanding at that time
    rss_bytes: I64  # Resident memory at that time; -1 if unknown
    kept_bytes: I64  # Freed memory that was still resident, by the last walk; 0 if unknown
    object_bytes: I64  # Of a runtime's objects beside the heap, by their last count; 0 if unknown

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class ThreadWork:
    """Allocations and frees of one thread since tracing began. Bytes are as requested."""

    tid: int  # 0: unknown threads
    name: str | None  # None if the thread had ended before its name was read
    allocated_bytes: int
    allocated_count: int
    freed_bytes: int  # Bytes freed by this thread, whichever thread allocated them
    freed_count: int  # Blocks freed by this thread, whichever thread allocated them
    freed_for_others_bytes: int  # Bytes freed by this thread, allocated by others
    freed_for_others_count: int
    freed_by_others_bytes: int  # Bytes allocated by this thread, freed by others
    freed_by_others_count: int


@dataclass(frozen=True, slots=True)
class ThreadFlow:
    """Blocks that one thread allocated and another one freed."""

    maker_tid: int  # Thread that allocated the blocks; 0: unknown
    ender_tid: int  # Thread that freed the blocks; 0: unknown
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadActivity:
    """Figures of all active threads: what each has allocated and freed, also for others."""

    threads: tuple[ThreadWork, ...]  # Active threads only, most allocated bytes first
    flows: tuple[ThreadFlow, ...]  # Flows from thread to thread, most bytes first
    names: Mapping[int, str]

    @property
    def freed_count(self) -> int:
        return sum(thread.freed_count for thread in self.threads)

    @property
    def remote_freed_count(self) -> int:
        return sum(flow.count for flow in self.flows)

    @property
    def remote_freed_bytes(self) -> int:
        return sum(flow.size_bytes for flow in self.flows)

    @property
    def remote_share(self) -> float:
        """Share of freed blocks that another thread freed; 0 to 1."""
        return self.remote_freed_count / max(self.freed_count, 1)
