"""The sections that list blocks, call stacks and types by one figure, the largest first."""

from typing import Any

import numpy as np

from tracelloc.model.blocks import BlockSelection
from tracelloc.model.process import TemporaryPolicy
from tracelloc.model.verdicts import Verdict
from tracelloc.show.analysis.differences import change
from tracelloc.show.presentation.blockholders import keeping_root_text
from tracelloc.show.presentation.blocktypes import BlockTypes, TypeSum
from tracelloc.show.presentation.facts import peak_facts, temporary_facts
from tracelloc.show.report.content import (
    Entry,
    Request,
    SectionContent,
    largest,
    share_of_allocations,
)
from tracelloc.show.tables import json_of
from tracelloc.text import (
    NS_PER_S,
    format_duration,
    format_percent,
    format_size,
    plural,
    printable,
    sampling_of,
    signed_size,
)

_TEMPORARY = "temporary allocation"


def allocations_part(given: Request) -> SectionContent:
    """Makes the section of the largest live blocks."""
    return _blocks_part(given, given.snapshot.top_blocks, "", "top_allocations", {})


def old_allocations_part(given: Request) -> SectionContent | None:
    """Makes the section of the largest blocks of a least age; None if no age is requested."""
    old = given.snapshot.old_blocks
    if old is None:
        return None
    which = f" older than {format_duration((given.style.min_age_ns or 0) / NS_PER_S)}"
    facts = {"old_bytes": old.size_bytes, "old_allocations": old.count}
    return _blocks_part(given, old, which, "top_old_allocations", facts)


def _blocks_part(
    given: Request, blocks: BlockSelection, which: str, key: str, facts: dict[str, Any]
) -> SectionContent:
    sampled = given.snapshot.sample_bytes
    note = "" if sampled is None else f" (sampled, {sampling_of(sampled)})"
    title = (
        f"==> {len(blocks.largest)} top allocations{which} out of {given.about}{blocks.count:,} "
        f"for a total of {given.about}{format_size(blocks.size_bytes)}{note}"
    )
    entries = []
    for block in blocks.largest:
        size_bytes, age_s = block.size_bytes, block.age_ns / NS_PER_S
        text = f"{format_size(size_bytes)} ({format_duration(age_s)} old)"
        figures = {"address": block.address, "size_bytes": size_bytes, "age_s": round(age_s, 3)}
        entries.append(Entry(block.stack, text, figures, label=f"    0x{block.address:016x}"))
    shown = frozenset(block.stack for block in blocks.largest)
    lines = [title] if entries or which else []  # Nothing is said of blocks that there are not
    return SectionContent(lines, facts, key, entries, novelties=shown)


def allocators_part(given: Request) -> SectionContent:
    """Makes the section of the stacks with most live bytes."""
    snapshot, findings = given.snapshot, given.snapshot.findings
    stats = snapshot.top_stacks(given.style.top, with_earlier=False)
    entries = []
    for stat in stats:
        verdict = None if findings is None else findings.verdict(stat.index)
        figures = {
            "bytes": stat.live_bytes,
            "allocations": stat.live_count,
            "growth_bytes_per_min": stat.growth_bytes_per_min,
            "verdict": None if verdict is None else verdict.value,
        }
        text = given.amount(stat.live_bytes, stat.live_count)
        if findings is not None and verdict is not None:
            is_weak = verdict is Verdict.GROWING and stat.index not in findings.suspect_of
            text += f", {verdict.value}{', not yet a suspect' if is_weak else ''}"
            # A suspect has sentences of its own, with its holders.
            if is_weak and (keeper := keeping_root_text(snapshot.holders.get(stat.index))):
                text += f", kept by {keeper}"
        entries.append(Entry(stat.index, text, figures))
    title = f"==> {len(stats)} top allocators out of {snapshot.live_stacks:,}:"
    shown = frozenset(stat.index for stat in stats)
    lines = [title] if entries else []
    return SectionContent(lines, {}, "top_allocators", entries, novelties=shown)


def since_mark_part(given: Request) -> SectionContent | None:
    """Makes the section of stacks that have grown most since the mark; None without a mark."""
    snapshot, mark = given.snapshot, given.mark
    if mark is None or mark.table_number != snapshot.table_number:
        return None
    changed = change(mark, snapshot)
    held, counts = changed.grown("live_bytes"), changed.grown("live_count")
    growing, order = largest(np.maximum(held, 0), given.style.top)
    facts: dict[str, Any] = {
        "elapsed_s": changed.elapsed_ns / NS_PER_S,
        "live_bytes": int(held.sum()),
        "live_allocations": int(counts.sum()),
        "allocated_bytes": int(changed.grown("allocated_bytes").sum()),
        "freed_bytes": int(changed.grown("freed_bytes").sum()),
        "growing_stacks": growing,
    }
    title = (
        f"==> since the mark {format_duration(facts['elapsed_s'])} ago: "
        f"{_more(facts['live_bytes'], facts['live_allocations'], given.about)}, "
        f"{len(order)} top growers out of {growing:,}:"
    )
    entries = []
    for stack in order:
        size_bytes, count = int(held[stack]), int(counts[stack])
        figures = {"bytes": size_bytes, "allocations": count}
        entries.append(Entry(stack, _more(size_bytes, count, given.about), figures))
    return SectionContent([title], facts, "top_allocators", entries)


def _more(size_bytes: int, count: int, about: str) -> str:
    sign = "+" if size_bytes >= 0 else ""
    return f"{about}{sign}{format_size(size_bytes)} in {about}{count:+,} allocations"


def peak_part(given: Request) -> SectionContent:
    """Makes the section of the high-water mark, and the stacks with most bytes then."""
    snapshot, about, entries = given.snapshot, given.about, []
    facts, peak = peak_facts(snapshot), snapshot.peak
    order = () if peak is None else largest(peak.live_bytes, given.style.top)[1]
    for stack in order:
        assert peak is not None
        size_bytes, count = int(peak.live_bytes[stack]), int(peak.live_count[stack])
        live_bytes = int(snapshot.totals.live_bytes[stack])
        share = format_percent(size_bytes / max(peak.size_bytes, 1))
        text = f"{given.amount(size_bytes, count)} ({share}), now {about}{format_size(live_bytes)}"
        figures = {"bytes": size_bytes, "allocations": count, "live_bytes": live_bytes}
        entries.append(Entry(stack, text, figures))
    title = (
        f"==> peak {format_duration(facts['ago_s'])} ago: "
        f"{given.amount(facts['bytes'], facts['allocations'])}, "
        f"now {about}{format_size(snapshot.live_bytes)}, "
        f"{len(entries)} top allocators out of {facts['stacks']:,} then:"
    )
    return SectionContent([title], facts, "top_allocators", entries)


def temporary_part(given: Request) -> SectionContent:
    """Makes the section of temporary allocations, and the stacks with most of them."""
    snapshot = given.snapshot
    facts = temporary_facts(snapshot)
    order = largest(snapshot.totals.temporary_count, given.style.top)[1]
    count = facts["unknown_allocations"]
    unknown = f", {given.about}{count:,} more not known" if count else ""
    share = facts["allocations"] / max(int(snapshot.totals.freed_count.sum()), 1)
    title = (
        f"==> {given.amount(facts['bytes'], facts['allocations'], _TEMPORARY)} "
        f"({_meaning(snapshot.temporary)}), {format_percent(share)} of all frees{unknown}; "
        f"{len(order)} top stacks out of {facts['stacks']:,}:"
    )
    entries = [
        Entry(
            stat.index,
            f"{given.amount(stat.temporary_bytes, stat.temporary_count, _TEMPORARY)}, "
            f"{share_of_allocations(stat, stat.temporary_count)}",
            {
                "temporary_allocations": stat.temporary_count,
                "temporary_bytes": stat.temporary_bytes,
                "allocations": stat.allocated_count,
            },
        )
        for stat in snapshot.stack_stats(order)
    ]
    return SectionContent([title], facts, "top_allocators", entries)


def _meaning(policy: TemporaryPolicy) -> str:
    if policy.life_ns is not None:
        return f"freed by the same thread within {format_duration(policy.life_ns / NS_PER_S)}"
    if policy.between == 0:
        return "freed by the same thread before any other allocation"
    return f"freed by the same thread after at most {plural(policy.between, 'other allocation')}"


def mappings_part(given: Request) -> SectionContent | None:
    """Makes the section of stacks with most mapped bytes; None if mappings are not traced."""
    mappings, entries = given.snapshot.mappings, []
    if mappings is None:
        return None
    for held in mappings.stacks[: given.style.top]:
        age_ns, count = given.snapshot.now_ns - held.oldest_ns, plural(held.count, "mapping")
        oldest = format_duration(age_ns / NS_PER_S)
        text = f"{format_size(held.size_bytes)} in {count}, the oldest {oldest} old"
        figures = {"bytes": held.size_bytes, "mappings": held.count, "oldest_s": age_ns / NS_PER_S}
        entries.append(Entry(held.stack, text, figures))
    title = (
        f"==> {len(entries)} top mappings' stacks out of {len(mappings.stacks):,}: "
        f"{plural(mappings.count, 'mapping')} for a total of {format_size(mappings.size_bytes)}"
    )
    facts = {
        "bytes": mappings.size_bytes,
        "mappings": mappings.count,
        "of_malloc_bytes": mappings.of_allocators_bytes,
    }
    return SectionContent([title], facts, "top", entries)


def types_part(given: Request) -> SectionContent:
    """Makes the section of live blocks by type; ``stacks`` in JSON is how many allocate it."""
    totals = given.snapshot.totals
    sums = BlockTypes().sums(given.snapshot, given.namer, totals.live_bytes, totals.live_count)
    known = [each for each in sums if each.name is not None]
    total = sum(each.size_bytes for each in sums)
    share = sum(each.size_bytes for each in known) / max(total, 1)
    title = (
        f"==> {len(known[: given.style.top])} top types out of {len(known):,}, which are known "
        f"for {format_percent(share, 0)} of live bytes:"
    )
    if not known:
        title = "==> types of blocks are not known (tracelloc help reports says what they need):"
    listed = [*known[: given.style.top], *(each for each in sums if each.name is None)]
    return SectionContent([title], {}, "types", [_type_entry(each, given) for each in listed])


def _type_entry(found: TypeSum, given: Request) -> Entry:
    text = given.amount(found.size_bytes, found.count)
    if found.growth_bytes_per_min:
        text += f", {signed_size(found.growth_bytes_per_min)}/min"
    if found.leaking_bytes:
        text += f", {format_size(found.leaking_bytes)} of it in stacks that leak"
    if len(found.stacks) > 1:
        text += f", from {plural(len(found.stacks), 'call stack')}"
    name = "unknown type" if found.name is None else printable(found.name)
    names = {"name": "type", "size_bytes": "bytes", "count": "allocations", "stacks": None}
    facts = {**json_of(found, names), "stacks": len(found.stacks)}
    is_known = found.name is not None
    return Entry(found.stacks[0], text, facts, label=f"    {name}", has_frames=is_known)
