"""The section of blocks by size: a histogram, exact sizes, and what the allocator wastes."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tracelloc.heap.blocks import Blocks
from tracelloc.report.part import StackFrames, StackLines, amount, entry_lines
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.snapshots.spread import Bin, SizeCount, frequent_sizes, size_bins
from tracelloc.snapshots.usable import UsableSizes
from tracelloc.snapshots.waste import StackWaste, TotalWaste, Waste, total_waste, wasteful_stacks
from tracelloc.units import about_of, plural
from tracelloc.views.waste import waste_line, waste_text, why_uncertain


@dataclass(frozen=True, slots=True)
class _Wasted:
    """What the allocator has given beyond what was asked for."""

    sizes: UsableSizes
    total: TotalWaste
    stacks: list[StackWaste]

    def facts(self, stack: StackFrames) -> dict[str, Any]:
        return {
            "allocator": self.sizes.main.provider.value,
            "uncertain": why_uncertain(self.sizes),
            "header_bytes": self.total.header_bytes,
            "read_allocations": self.total.read_count,
            "computed_allocations": self.total.computed_count,
            "top_stacks": [
                {
                    "allocations": found.count,
                    **_waste(found.waste),
                    "stack_id": found.index,
                    "stack": stack(found.index),
                }
                for found in self.stacks
            ],
        }


@dataclass(frozen=True, slots=True)
class SizesPart:
    """Outstanding blocks by what was asked for, and what the allocator has given for it."""

    bins: list[Bin]
    frequent: list[SizeCount]
    wasted: _Wasted | None
    """None: usable sizes were not looked for."""
    dropped_count: int
    """Blocks of which nothing but the sums has been kept: the process has ended."""
    about: str
    """``~`` where figures are estimates."""

    @classmethod
    def of(cls, snapshot: Snapshot, top: int) -> SizesPart:
        """From a snapshot with blocks; the ``top`` exact sizes and stacks."""
        blocks = snapshot.blocks.blocks() if snapshot.blocks is not None else Blocks.empty()
        sampled, sizes = snapshot.sample_bytes, snapshot.usable
        usable = None if sizes is None else sizes.of(blocks)
        wasted = None
        if sizes is not None and usable is not None and len(blocks):
            total = total_waste(blocks, sampled, usable, sizes.header_bytes)
            wasted = _Wasted(sizes, total, wasteful_stacks(blocks, sampled, usable, top))
        return cls(
            bins=size_bins(blocks, sampled, usable),
            frequent=frequent_sizes(blocks, top, sampled, usable),
            wasted=wasted,
            dropped_count=0 if len(blocks) else snapshot.live_count,
            about=about_of(snapshot.sample_bytes),
        )

    @property
    def stacks(self) -> Set[int]:
        """Those that waste most."""
        return frozenset() if self.wasted is None else {s.index for s in self.wasted.stacks}

    def lines(self, stack: StackLines) -> Iterator[str]:
        """A line per bin and per exact size, then the waste in all and by stack."""
        if self.dropped_count:
            count = plural(self.dropped_count, "allocation")
            yield f"==> sizes of {self.about}{count} are not kept: the process has ended"
            return
        yield "==> outstanding blocks by size:"
        for bin_ in self.bins:
            yield self._line(f"{bin_.low}-{bin_.high} B", bin_)
        yield f"==> {len(self.frequent)} sizes that hold most:"
        for size in self.frequent:
            yield self._line(f"{size.size} B", size)
        if self.wasted is None:
            return
        yield f"==> {waste_line(self.wasted.sizes, self.wasted.total, self.about)}"
        yield f"==> {len(self.wasted.stacks)} stacks that waste most:"
        yield from entry_lines(self.wasted.stacks, self._wasting, stack)

    def _line(self, label: str, held: Bin | SizeCount) -> str:
        line = f"{label:>24}: {amount(held.size_bytes, held.count, self.about)}"
        if held.waste is not None and held.count:
            line += f", {waste_text(held.waste, self.about)}"
        return f"    {line}"

    def _wasting(self, found: StackWaste) -> str:
        count = plural(found.count, "allocation")
        return f"{waste_text(found.waste, self.about)} in {self.about}{count}"

    def facts(self, stack: StackFrames) -> dict[str, Any]:
        """``bins`` from the smallest sizes on, ``top_sizes`` by the bytes they hold.

        A bin's ``from_bytes`` and ``to_bytes`` are the smallest and the largest size in it.
        ``usable_bytes`` and ``waste_bytes`` are of blocks whose usable size is known, all
        but ``unknown_allocations``; null if it was not looked for. ``dropped_allocations``
        are in nothing of this, as their process has ended.
        """
        facts: dict[str, Any] = {
            "bins": [
                {"from_bytes": bin_.low, "to_bytes": bin_.high, **_held(bin_)} for bin_ in self.bins
            ],
            "top_sizes": [{"size_bytes": size.size, **_held(size)} for size in self.frequent],
            "dropped_allocations": self.dropped_count,
            **_waste(None if self.wasted is None else self.wasted.total.waste),
        }
        if self.wasted is not None:
            facts |= self.wasted.facts(stack)
        return facts


def _held(held: Bin | SizeCount) -> dict[str, Any]:
    return {"allocations": held.count, "bytes": held.size_bytes, **_waste(held.waste)}


def _waste(waste: Waste | None) -> dict[str, Any]:
    return {
        "usable_bytes": None if waste is None else waste.usable_bytes,
        "waste_bytes": None if waste is None else waste.waste_bytes,
        "unknown_allocations": None if waste is None else waste.unknown_count,
    }
