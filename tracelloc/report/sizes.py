"""The section of blocks by size: a histogram, exact sizes, and what the allocator wastes."""

from __future__ import annotations

from typing import Any

from tracelloc.heap.blocks import Blocks
from tracelloc.report.part import Entry, Part, Request
from tracelloc.snapshots.spread import (
    Bin,
    SizeCount,
    StackWaste,
    Waste,
    frequent_sizes,
    size_bins,
    total_waste,
    wasteful_stacks,
)
from tracelloc.text import plural
from tracelloc.views.process import waste_line, waste_text, why_uncertain


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
    total = None
    if sizes is not None and usable is not None and len(blocks):
        total = total_waste(blocks, sampled, usable, sizes.header_bytes)
    bins = size_bins(blocks, sampled, usable)
    frequent = frequent_sizes(blocks, given.top, sampled, usable)
    dropped_count = 0 if len(blocks) else snapshot.live_count
    facts: dict[str, Any] = {
        "bins": [{"from_bytes": bin_.low, "to_bytes": bin_.high, **_held(bin_)} for bin_ in bins],
        "top_sizes": [{"size_bytes": size.size, **_held(size)} for size in frequent],
        "dropped_allocations": dropped_count,
        **_waste(None if total is None else total.waste),
    }
    if dropped_count:
        count = plural(dropped_count, "allocation")
        gone = f"==> sizes of {given.about}{count} are not kept: the process has ended"
        return Part([gone], facts)
    lines = ["==> outstanding blocks by size:"]
    lines += [_line(f"{bin_.low}-{bin_.high} B", bin_, given) for bin_ in bins]
    lines.append(f"==> {len(frequent)} sizes that hold most:")
    lines += [_line(f"{size.size} B", size, given) for size in frequent]
    if sizes is None or usable is None or total is None:
        return Part(lines, facts)
    wasteful = wasteful_stacks(blocks, sampled, usable, given.top)
    lines.append(f"==> {waste_line(sizes, total, given.about)}")
    lines.append(f"==> {len(wasteful)} stacks that waste most:")
    facts |= {
        "allocator": sizes.main.provider.value,
        "uncertain": why_uncertain(sizes),
        "header_bytes": total.header_bytes,
        "read_allocations": total.read_count,
        "computed_allocations": total.computed_count,
    }
    return Part(lines, facts, "top_stacks", [_entry(found, given.about) for found in wasteful])


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
