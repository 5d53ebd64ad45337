"""Copies a process's memory: resident pages only, as reading others would fault them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.record.heapwalk.chunks import ListReader
from tracelloc.record.process.memory import PAGE_BYTES, U64, RemoteMemory
from tracelloc.record.process.regions import Region, read_regions


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns sorted, disjoint ranges (start, end) with the same addresses."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


@dataclass(frozen=True, slots=True)
class AddressRuns:
    """Sorted, disjoint runs of addresses, which tell how many bytes of a range are in a run."""

    starts: U64
    ends: U64
    before: U64  # Bytes of all runs before each run; a last element for all runs

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> AddressRuns:
        """Makes runs of disjoint ranges (start, end), in any order."""
        rows = np.array(sorted(ranges), np.uint64).reshape(-1, 2)
        return cls.from_columns(rows[:, 0].copy(), rows[:, 1].copy())

    @classmethod
    def from_columns(cls, starts: U64, ends: U64) -> AddressRuns:
        sums = np.concatenate([[np.uint64(0)], np.cumsum(ends - starts)])
        return cls(starts, ends, sums.astype(np.uint64))

    @classmethod
    def read_resident(cls, memory: RemoteMemory, ranges: list[tuple[int, int]]) -> AddressRuns:
        """Returns the resident parts of address ranges. Raises OSError, PrivilegeError."""
        rows = memory.resident_runs(sorted(ranges), lambda: True)
        return cls.from_ranges((start, end) for _, start, end in rows)

    def intersect(self, other: AddressRuns) -> AddressRuns:
        edges = np.concatenate([self.starts, other.starts, self.ends, other.ends])
        steps = np.where(np.arange(len(edges)) < len(self.starts) + len(other.starts), 1, -1)
        order = np.lexsort((steps, edges))  # ends first
        edges, depths = edges[order], np.cumsum(steps[order])
        rows = np.flatnonzero(depths == 2)
        rows = rows[edges[rows] < edges[rows + 1]]
        return AddressRuns.from_columns(edges[rows], edges[rows + 1])

    def below(self, addresses: U64) -> U64:
        """Returns how many bytes of the runs are below each address."""
        if not len(self.starts):
            return np.zeros(len(addresses), np.uint64)
        run = np.maximum(np.searchsorted(self.starts, addresses, side="right"), 1) - 1
        inside = np.clip(addresses, self.starts[run], self.ends[run]) - self.starts[run]
        below: U64 = self.before[run] + inside
        return below

    def bytes_of(self, starts: U64, ends: U64) -> U64:
        if len(starts):
            # Most often all is in one run.
            run = int(np.searchsorted(self.starts, starts.min(), side="right")) - 1
            if run >= 0 and ends.max() <= self.ends[run]:
                return ends - starts
        return self.below(ends) - self.below(starts)


class PieceReader:
    """Reads contiguous memory of a process; pages that are not resident read as zero."""

    def __init__(
        self, memory: RemoteMemory, note_read: Callable[[int], None] = lambda _: None
    ) -> None:
        """``note_read`` is called with the bytes of each read."""
        self.memory = memory
        self._note_read = note_read
        self.address_end = native().address_end

    def regions(self) -> list[Region]:
        """Reads the process's current mappings. Raises TargetError, PrivilegeError."""
        return read_regions(self.memory.process.maps_text())

    def words(self, address: int, size_bytes: int, into: U64 | None = None) -> U64:
        """Returns a copy of memory as 8-byte words; both numbers are multiples of 8. ``into``, if
        given, has room for the words and is reused. Raises OSError, TargetError and PrivilegeError.
        """
        found = np.empty(size_bytes // 8, np.uint64) if into is None else into[: size_bytes // 8]
        end = address + size_bytes
        if address < 0 or end > self.address_end:
            found[:] = 0
            return found
        whole = address & -PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES
        runs = np.array(
            [(a, b) for _, a, b in self.memory.resident_runs([whole], lambda: True)], np.uint64
        ).reshape(-1, 2)
        runs = np.clip(runs, np.uint64(address), np.uint64(end))
        if len(runs) != 1 or runs[0, 0] != address or runs[0, 1] != end:
            found[:] = 0
        for first, last in runs.tolist():
            piece = np.array([[first, last - first]], np.uint64)
            self.memory.fetch(piece, found[(first - address) // 8 :])
            self._note_read(last - first)
        return found

    def word(self, address: int) -> int:
        """Returns the word at a multiple of 8; 0 if it is not resident. Raises as ``words``."""
        return int(self.words(address, 8)[0])

    @contextmanager
    def lists(self) -> Iterator[ListReader]:
        """Opens a reader of linked lists in the process's memory. Raises OSError."""
        directory = self.memory.process.memory_directory
        with (
            open(directory / "mem", "rb", buffering=0) as memory,
            open(directory / "pagemap", "rb", buffering=0) as pagemap,
        ):
            yield ListReader(memory.fileno(), pagemap.fileno())
