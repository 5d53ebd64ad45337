"""The section of blocks by size: a histogram, exact sizes, and what the allocator wastes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracelloc.heap.blocks import Blocks
from tracelloc.report.part import Entry, Part, Request
from tracelloc.snapshots.spread import Bin, SizeCount, frequent_sizes, size_bins
from tracelloc.snapshots.usable import UsableSizes
from tracelloc.snapshots.waste import StackWaste, TotalWaste, Waste, total_waste, wasteful_stacks
from tracelloc.units import plural
from tracelloc.views.waste import waste_line, waste_text, why_uncertain


@dataclass(frozen=True, slots=True)
class _Wasted:
    """What the allocator has given beyond what was asked for."""

    sizes: UsableSizes
    total: TotalWaste
    stacks: Sequence[StackWaste]

    def facts(self) -> dict[str, Any]:
        return {
            "allocator": self.sizes.main.provider.value,
            "uncertain": why_uncertain(self.sizes),
            "header_bytes": self.total.header_bytes,
            "read_allocations": self.total.read_count,
            "computed_allocations": self.total.computed_count,
        }


def sizes_part(given: Request) -> Part:
    """Outstanding blocks by what was asked for, and the stacks that waste most.

    In JSON, ``bins`` go from the smallest sizes on, ``top_sizes`` by the bytes they hold. A
    bin's ``from_bytes`` and ``to_bytes`` are the smallest and the largest size in it.
    ``usable_bytes`` and ``waste_bytes`` are of blocks whose usable size is known, all but
    ``unknown_allocations``; null if it was not looked for. ``dropped_allocations`` are in
    nothing of this, as their process has ended.
    """
    snapshot = given.snapshot
    blocks = snapshot.blocks.blocks() if snapshot.blocks is not None else Blocks.empty()
    sampled, sizes = snapshot.sample_bytes, snapshot.usable
    usable = None if sizes is None else sizes.of(blocks)
    wasted = None
    if sizes is not None and usable is not None and len(blocks):
        total = total_waste(blocks, sampled, usable, sizes.header_bytes)
        wasted = _Wasted(sizes, total, wasteful_stacks(blocks, sampled, usable, given.top))
    bins = size_bins(blocks, sampled, usable)
    frequent = frequent_sizes(blocks, given.top, sampled, usable)
    dropped_count = 0 if len(blocks) else snapshot.live_count
    facts: dict[str, Any] = {
        "bins": [{"from_bytes": bin_.low, "to_bytes": bin_.high, **_held(bin_)} for bin_ in bins],
        "top_sizes": [{"size_bytes": size.size, **_held(size)} for size in frequent],
        "dropped_allocations": dropped_count,
        **_waste(None if wasted is None else wasted.total.waste),
    }
    if dropped_count:
        count = plural(dropped_count, "allocation")
        gone = f"==> sizes of {given.about}{count} are not kept: the process has ended"
        return Part([gone], facts)
    lines = list(_lines(bins, frequent, wasted, given))
    if wasted is None:
        return Part(lines, facts)
    entries = [_entry(found, given.about) for found in wasted.stacks]
    return Part(lines, facts | wasted.facts(), "top_stacks", entries)


def _lines(
    bins: Sequence[Bin], frequent: Sequence[SizeCount], wasted: _Wasted | None, given: Request
) -> Iterator[str]:
    """A line per bin and per exact size, then the waste in all."""
    yield "==> outstanding blocks by size:"
    for bin_ in bins:
        yield _line(f"{bin_.low}-{bin_.high} B", bin_, given)
    yield f"==> {len(frequent)} sizes that hold most:"
    for size in frequent:
        yield _line(f"{size.size} B", size, given)
    if wasted is not None:
        yield f"==> {waste_line(wasted.sizes, wasted.total, given.about)}"
        yield f"==> {len(wasted.stacks)} stacks that waste most:"


def _line(label: str, held: Bin | SizeCount, given: Request) -> str:
    line = f"    {label:>24}: {given.amount(held.size_bytes, held.count)}"
    if held.waste is not None and held.count:
        line += f", {waste_text(held.waste, given.about)}"
    return line


def _entry(found: StackWaste, about: str) -> Entry:
    count = plural(found.count, "allocation")
    return Entry(
        found.index,
        f"{waste_text(found.waste, about)} in {about}{count}",
        {"allocations": found.count, **_waste(found.waste)},
    )


def _held(held: Bin | SizeCount) -> dict[str, Any]:
    return {"allocations": held.count, "bytes": held.size_bytes, **_waste(held.waste)}


def _waste(waste: Waste | None) -> dict[str, Any]:
    return {
        "usable_bytes": None if waste is None else waste.usable_bytes,
        "waste_bytes": None if waste is None else waste.waste_bytes,
        "unknown_allocations": None if waste is None else waste.unknown_count,
    }
