"""The section on blocks that were allocated before tracing began."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from tracelloc.heap.usable import formula_for, main_library
from tracelloc.model.blocks import EarlierKind
from tracelloc.model.verdicts import Findings
from tracelloc.show.presentation.blocktypes import class_text
from tracelloc.show.presentation.naming import stack_title
from tracelloc.show.report.content import Entry, Request, SectionContent
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import amount, format_percent, format_size, plural, printable

# A stack that allocates most of the blocks of a size, and its share of these allocations.
#
# Only stacks count that always allocate the same size.
Likeness = tuple[int, float]
_LEAST_COUNT: Final = 10  # Allocations of a stack before its size says something
_LEAST_SHARE: Final = 0.5
_SEEN: Final = 0.999  # Part of the heap below which a report says how much was seen


def earlier_part(given: Request) -> SectionContent | None:
    """Lists the kinds with most bytes; None if earlier blocks are not in the figures."""
    snapshot, earlier = given.snapshot, given.snapshot.earlier
    if earlier is None:
        return None
    counts = snapshot.totals.live_count
    live_stacks = [kind.stack for kind in earlier.kinds if counts[kind.stack]]
    stats = {stat.index: stat for stat in snapshot.stack_stats(live_stacks)}
    live = [(kind, stats[kind.stack]) for kind in earlier.kinds if kind.stack in stats]
    live_bytes = sum(stat.live_bytes for _, stat in live)
    live_count = sum(stat.live_count for _, stat in live)
    lost = {kind.stack: _lost(snapshot.findings, kind.stack) for kind in earlier.kinds}
    live.sort(key=lambda pair: (-lost[pair[0].stack][1], -pair[1].live_bytes))
    lost_count = sum(count for count, _ in lost.values())
    lost_bytes = sum(size for _, size in lost.values())
    alike = find_alike(snapshot, [kind for kind, _ in live[: given.style.top]])
    entries, novelties = [], set()
    for kind, stat in live[: given.style.top]:
        count, size = lost[kind.stack]
        text = f"{amount(stat.live_bytes, stat.live_count)} {_of(kind)}"
        if count:
            text += f", {_lost_words(count, size)}"
        figures = {
            "class": kind.class_name or None,
            "least_usable_bytes": kind.least_bytes,
            "most_usable_bytes": kind.most_bytes,
            "bytes": stat.live_bytes,
            "allocations": stat.live_count,
            "lost_bytes": size,
            "lost_allocations": count,
        }
        like = alike.get(kind.stack)
        # Counts of lost blocks vary a little between searches.
        novelties.add((kind.stack, count.bit_length(), like and like[0]))
        complete = partial(_with_allocator, like)
        entries.append(Entry(kind.stack, text, figures, has_frames=False, complete=complete))
    freed = earlier.size_bytes - live_bytes
    title = (
        f"==> allocated before tracing: {amount(live_bytes, live_count)}, "
        f"{format_size(freed)} freed since; {len(entries)} top kinds out of {len(live):,}:"
    )
    lines = [title]
    if sum(count > 0 for count, _ in lost.values()) > 1:
        lines.append(f"==> of these, {_lost_words(lost_count, lost_bytes)}")
    if earlier.coverage < _SEEN:
        lines.append(f"==> {format_percent(earlier.coverage, 1)} of the heap was seen")
    lines += [f"==> {printable(note)}" for note in earlier.notes]
    facts: dict[str, Any] = {
        "bytes": live_bytes,
        "allocations": live_count,
        "freed_bytes": freed,
        "freed_allocations": earlier.count - live_count,
        "lost_bytes": lost_bytes,
        "lost_allocations": lost_count,
        "coverage": round(earlier.coverage, 6),
        "notes": list(earlier.notes),
    }
    also = {like[0] for like in alike.values()}
    return SectionContent(lines, facts, "top_kinds", entries, also=also, novelties=novelties)


def _with_allocator(like: Likeness | None, given: Request, entry: Entry) -> Entry:
    """Adds the stack that allocates such blocks now."""
    if like is None:
        return replace(entry, facts={**entry.facts, "alike": None})
    index, share = like
    title = stack_title(given.namer.stack(given.snapshot, index), index)
    percent = format_percent(share, 0)
    words = f"      {percent} of such blocks are now allocated in {printable(title)}"
    facts = {"stack_id": index, "share": round(share, 4), "allocated_in": title}
    return replace(entry, facts={**entry.facts, "alike": facts}, more=[words])


def _of(kind: EarlierKind) -> str:
    size = format_size(kind.most_bytes)
    words = f"of {size}" if kind.least_bytes == kind.most_bytes else f"of up to {size}"
    return f"{words}, class {class_text(kind.class_name)}" if kind.class_name else words


def _lost(findings: Findings | None, stack: int) -> tuple[int, int]:
    """Number and bytes of the blocks of a kind that nothing points to, as far as is known."""
    if findings is None or stack >= len(findings.sites):
        return 0, 0
    sites = findings.sites
    return int(sites.unreachable[stack]), int(sites.unreachable_bytes[stack])


def _lost_words(count: int, size_bytes: int) -> str:
    blocks = f"{plural(count, 'block')} ({format_size(size_bytes)})"
    return f"{blocks} lost: nothing points to {'it' if count == 1 else 'them'}"


def find_alike(snapshot: Snapshot, kinds: Iterable[EarlierKind]) -> dict[int, Likeness]:
    """The stack for each kind, by the kind's own; only where one stack allocates at least half."""
    main = main_library(snapshot.allocators)
    formula = None if main is None else formula_for(main)
    if formula is None:
        return {}
    totals = snapshot.totals
    counts, sums = totals.allocated_count, totals.allocated_bytes
    is_steady = (counts >= _LEAST_COUNT) & ~snapshot.are_earlier
    is_steady &= sums % np.maximum(counts, 1) == 0
    stacks = np.flatnonzero(is_steady)
    usable, known = formula((sums[stacks] // counts[stacks]).astype(np.uint64))
    stacks, usable = stacks[known], usable[known]
    found = {}
    for kind in kinds:
        alike = stacks[(usable >= kind.least_bytes) & (usable <= kind.most_bytes)]
        if not len(alike):
            continue
        share = float(counts[alike].max() / counts[alike].sum())
        if share >= _LEAST_SHARE:
            found[kind.stack] = int(alike[counts[alike].argmax()]), share
    return found
