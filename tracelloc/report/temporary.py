"""The section of temporary allocations: which stacks make most of them."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tracelloc.heap.temporary import Soon
from tracelloc.report.part import StackFrames, StackLines, amount, entry_lines, largest
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.units import NS_PER_S, about_of, format_duration, plural


@dataclass(frozen=True, slots=True)
class TemporaryPart:
    """Blocks that were freed soon after by the thread that had made them."""

    count: int
    size_bytes: int
    freed_count: int
    unordered_count: int
    soon: Soon
    making: int
    """Stacks that have made any."""
    entries: tuple[StackStat, ...]
    about: str

    @classmethod
    def of(cls, snapshot: Snapshot, top: int) -> TemporaryPart:
        """The ``top`` stacks by the number of their temporary allocations."""
        counts = snapshot.totals.temporary_count
        making, order = largest(counts, top)
        return cls(
            count=int(counts.sum()),
            size_bytes=int(snapshot.totals.temporary_bytes.sum()),
            freed_count=int(snapshot.totals.freed_count.sum()),
            unordered_count=snapshot.unordered_count,
            soon=snapshot.soon,
            making=making,
            entries=tuple(snapshot.stack_stats(order)),
            about=about_of(snapshot.sample_bytes),
        )

    @property
    def stacks(self) -> Set[int]:
        """Of all entries."""
        return {entry.index for entry in self.entries}

    def lines(self, stack: StackLines) -> Iterator[str]:
        """All together, then the stacks that make most."""
        unknown = ""
        if self.unordered_count:
            unknown = f", of {self.about}{plural(self.unordered_count, 'other')} it is not known"
        share = self.count / max(self.freed_count, 1)
        yield (
            f"==> {amount(self.size_bytes, self.count, self.about, 'temporary allocation')} "
            f"({_meaning(self.soon)}), {share:.1%} of all that were freed{unknown}; "
            f"{len(self.entries)} top stacks out of {self.making}:"
        )
        yield from entry_lines(self.entries, self._line, stack)

    def _line(self, stat: StackStat) -> str:
        made = amount(
            stat.temporary_bytes, stat.temporary_count, self.about, "temporary allocation"
        )
        share = stat.temporary_count / max(stat.allocated_count, 1)
        return f"{made}, {share:.1%} of all that it has made"

    def facts(self, stack: StackFrames) -> dict[str, Any]:
        """``top_allocators`` by the number of temporary allocations."""
        return {
            "allocations": self.count,
            "bytes": self.size_bytes,
            "unknown_allocations": self.unordered_count,
            "most_between": self.soon.between if self.soon.life_ns is None else None,
            "most_s": None if self.soon.life_ns is None else self.soon.life_ns / NS_PER_S,
            "stacks": self.making,
            "top_allocators": [
                {
                    "temporary_allocations": stat.temporary_count,
                    "temporary_bytes": stat.temporary_bytes,
                    "allocations": stat.allocated_count,
                    "stack_id": stat.index,
                    "stack": stack(stat.index),
                }
                for stat in self.entries
            ],
        }


def _meaning(soon: Soon) -> str:
    if soon.life_ns is not None:
        return f"freed by the same thread within {format_duration(soon.life_ns / NS_PER_S)}"
    others = "no other" if soon.between == 0 else f"at most {plural(soon.between, 'other')}"
    return f"freed by the same thread, {others} between"
