"""The section of blocks by size: a histogram, and the exact sizes that hold most."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tracelloc.heap.blocks import Blocks
from tracelloc.report.part import StackFrames, StackLines, about_of, amount
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.snapshots.spread import Bin, SizeCount, frequent_sizes, size_bins


@dataclass(frozen=True, slots=True)
class SizesPart:
    """Outstanding blocks by what was asked for."""

    bins: list[Bin]
    frequent: list[SizeCount]
    about: str
    """``~`` where figures are estimates."""

    @classmethod
    def of(cls, snapshot: Snapshot, top: int) -> SizesPart:
        """From a snapshot with blocks; the ``top`` exact sizes."""
        blocks = snapshot.blocks.blocks() if snapshot.blocks is not None else Blocks.empty()
        sampled = snapshot.sample_bytes
        return cls(
            size_bins(blocks, sampled),
            frequent_sizes(blocks, top, sampled),
            about_of(snapshot),
        )

    @property
    def stacks(self) -> Set[int]:
        """None."""
        return frozenset()

    def lines(self, _stack: StackLines) -> Iterator[str]:
        """A line per bin, and one per exact size."""
        yield "==> outstanding blocks by size:"
        for bin_ in self.bins:
            yield self._line(f"{bin_.low}-{bin_.high} B", bin_)
        yield f"==> {len(self.frequent)} sizes that hold most:"
        for size in self.frequent:
            yield self._line(f"{size.size} B", size)

    def _line(self, label: str, held: Bin | SizeCount) -> str:
        return f"    {label:>24}: {amount(held.size_bytes, held.count, self.about)}"

    def facts(self, _stack: StackFrames) -> dict[str, Any]:
        """``bins`` from the smallest sizes on, ``top_sizes`` by the bytes they hold.

        A bin's ``from_bytes`` and ``to_bytes`` are the smallest and the largest size in it.
        """
        return {
            "bins": [
                {
                    "from_bytes": bin_.low,
                    "to_bytes": bin_.high,
                    "allocations": bin_.count,
                    "bytes": bin_.size_bytes,
                }
                for bin_ in self.bins
            ],
            "top_sizes": [
                {"size_bytes": s.size, "allocations": s.count, "bytes": s.size_bytes}
                for s in self.frequent
            ],
        }
