"""The sections of every report: the largest allocations and the stacks that hold most."""

from __future__ import annotations

from tracelloc.report.part import Entry, Part, Request
from tracelloc.snapshots.blocks import BlockSelection, BlockStat
from tracelloc.snapshots.snapshot import StackStat
from tracelloc.units import NS_PER_S, format_age, format_duration, format_size


def allocations_part(given: Request) -> Part:
    """The largest of all outstanding blocks."""
    blocks = given.snapshot.top_blocks
    return Part([_title(blocks, "", given)], {}, "top_allocations", _entries(blocks))


def old_allocations_part(given: Request) -> Part | None:
    """The largest of those of an age, if one was asked for."""
    old = given.snapshot.old_blocks
    if old is None:
        return None
    age_s = (given.min_age_ns or 0) / NS_PER_S
    return Part(
        [_title(old, f" older than {format_duration(age_s)}", given)],
        {"old_bytes": old.size_bytes, "old_allocations": old.count},
        "top_old_allocations",
        _entries(old),
    )


def _title(blocks: BlockSelection, which: str, given: Request) -> str:
    about, sampled = given.about, given.snapshot.sample_bytes
    note = "" if sampled is None else f" (sampled, one in {format_size(sampled)})"
    return (
        f"==> {len(blocks.largest)} top allocations{which} out of {about}{blocks.count} "
        f"for a total of {about}{format_size(blocks.size_bytes)}{note}"
    )


def _entries(blocks: BlockSelection) -> list[Entry]:
    return [_entry(block) for block in blocks.largest]


def _entry(block: BlockStat) -> Entry:
    return Entry(
        block.stack,
        f"{format_size(block.size_bytes)} ({format_age(block.age_ns)} old)",
        {
            "address": block.address,
            "size_bytes": block.size_bytes,
            "age_s": block.age_ns / NS_PER_S,
        },
        label=f"    0x{block.address:016x}",
    )


def allocators_part(given: Request) -> Part:
    """The stacks that hold most."""
    stats = given.snapshot.top_stacks(given.top)
    return Part(
        [f"==> {len(stats)} top allocators out of {given.snapshot.live_stacks}:"],
        {},
        "top_allocators",
        [_allocator(stat, given) for stat in stats],
    )


def _allocator(stat: StackStat, given: Request) -> Entry:
    findings = given.snapshot.findings
    return Entry(
        stat.index,
        given.amount(stat.live_bytes, stat.live_count),
        {
            "bytes": stat.live_bytes,
            "allocations": stat.live_count,
            "growth_bytes_per_min": stat.growth_bytes_per_min,
            "verdict": None if findings is None else findings.verdict(stat.index).value,
        },
    )
