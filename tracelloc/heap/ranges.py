"""Memory that the target itself has mapped: address ranges with their call stacks.

Exact under partial unmaps and mappings over mappings: the rest of a range keeps its stack and
its birth. Mappings are few, so this is plain Python over a sorted list.
"""

from __future__ import annotations

import bisect
import mmap
from typing import Final

from tracelloc.dataclass import dataclass, replace
from tracelloc.heap.stacks import Stacks
from tracelloc.model.blocks import MappedStack, Mappings
from tracelloc.model.events import (
    EVENT_KIND_MASK,
    EVENT_SIZE_BITS,
    EVENT_SIZE_MASK,
    EventKind,
    Events,
)

_PAGE_BYTES: Final = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Range:
    """A mapped range of addresses ``start <= a < end``, in whole pages."""

    start: int
    end: int
    stack: int  # Index of `CallStacks`
    birth_ns: int  # CLOCK_MONOTONIC
    tid: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class RangeTable:
    """The mappings of one address space. Not thread safe."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self.mapped_bytes = 0  # Bytes ever mapped
        self.unmapped_bytes = 0  # Mapped bytes that were unmapped since
        self._starts: list[int] = []
        self._ranges: list[Range] = []
        self._taken: dict[int, list[Range]] = {}

    def __len__(self) -> int:
        return len(self._ranges)

    def fork(self) -> RangeTable:
        """Returns a forked child's mappings; ranges unmapped before do not count for the child."""
        child = RangeTable(self.stacks)
        child.mapped_bytes = self.mapped_bytes - self.unmapped_bytes
        child._starts, child._ranges = list(self._starts), list(self._ranges)
        return child

    def apply(self, events: Events) -> None:
        """Applies mmap and munmap events (records of ring ``mappings``), in order."""
        stacks = self.stacks.indices(events["stack_id"]).tolist()
        for event, stack in zip(events.tolist(), stacks, strict=True):
            fields = dict(zip(events.dtype.names or (), event, strict=True))
            start = fields["address"] & -_PAGE_BYTES
            size = fields["size_tag"] & EVENT_SIZE_MASK
            end = start + (-(-size // _PAGE_BYTES) * _PAGE_BYTES)
            kind = fields["size_tag"] >> EVENT_SIZE_BITS & EVENT_KIND_MASK
            tid = fields["tid"]
            if kind == EventKind.UNMAP_FAILED:
                for taken in self._taken.pop(tid, []):
                    self.unmapped_bytes -= taken.size_bytes
                    self._put(taken)
                continue
            gone = self._cut(start, end)  # This thread's earlier unmap, if any, is over
            self._taken.pop(tid, None)
            if kind == EventKind.UNMAP:
                self._taken[tid] = gone
            elif end > start:
                self.mapped_bytes += end - start
                self._put(Range(start, end, stack, fields["time_ns"], tid))

    def _put(self, added: Range) -> None:
        at = bisect.bisect_left(self._starts, added.start)
        self._starts.insert(at, added.start)
        self._ranges.insert(at, added)

    def _cut(self, start: int, end: int) -> list[Range]:
        """Removes addresses. Returns the ranges that were there, cut to these addresses."""
        first = bisect.bisect_right(self._starts, start) - 1
        if first < 0 or self._ranges[first].end <= start:
            first += 1
        last = bisect.bisect_left(self._starts, end)
        if first >= last:
            return []
        touched = self._ranges[first:last]
        left, right = touched[0], touched[-1]
        kept = []
        if left.start < start:
            kept.append(replace(left, end=start))
        if right.end > end:
            kept.append(replace(right, start=end))
        self._ranges[first:last] = kept
        self._starts[first:last] = [piece.start for piece in kept]
        gone = [
            replace(piece, start=max(piece.start, start), end=min(piece.end, end))
            for piece in touched
        ]
        self.unmapped_bytes += sum(piece.size_bytes for piece in gone)
        return gone

    def ranges(self) -> list[Range]:
        return list(self._ranges)

    def mappings(self, of_allocators: set[int]) -> Mappings:
        """Returns the program's own mappings: all but those of the stacks ``of_allocators``."""
        held = self.by_stack()
        return Mappings(
            stacks=tuple(each for each in held if each.stack not in of_allocators),
            of_allocators_bytes=sum(e.size_bytes for e in held if e.stack in of_allocators),
        )

    def by_stack(self) -> list[MappedStack]:
        found: dict[int, MappedStack] = {}
        for each in self._ranges:
            was = found.get(each.stack, MappedStack(each.stack, 0, 0, each.birth_ns))
            found[each.stack] = MappedStack(
                each.stack,
                was.count + 1,
                was.size_bytes + each.size_bytes,
                min(was.oldest_ns, each.birth_ns),
            )
        return sorted(found.values(), key=lambda held: (-held.size_bytes, held.stack))
