"""The section of blocks by size: a histogram, and the exact sizes that hold most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

from tracelloc.heap.blocks import Blocks
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.snapshots.spread import Bin, SizeCount, frequent_sizes, size_bins
from tracelloc.units import format_size, plural


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
            "" if sampled is None else "~",
        )

    @property
    def stacks(self) -> Set[int]:
        """None."""
        return frozenset()

    def lines(self, _stack: Callable[[int], Iterator[str]]) -> Iterator[str]:
        """A line per bin, and one per exact size."""
        yield "==> outstanding blocks by size:"
        for bin_ in self.bins:
            yield self._line(f"{bin_.low}-{bin_.high} B", bin_)
        yield f"==> {len(self.frequent)} sizes that hold most:"
        for size in self.frequent:
            yield self._line(f"{size.size} B", size)

    def _line(self, label: str, held: Bin | SizeCount) -> str:
        count = plural(held.count, "allocation")
        return f"    {label:>24}: {self.about}{format_size(held.size_bytes)} in {self.about}{count}"

    def facts(self, _stack: Callable[[int], list[dict[str, Any]]]) -> dict[str, Any]:
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
