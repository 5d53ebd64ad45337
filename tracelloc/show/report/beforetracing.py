"""The section on blocks that were allocated before tracing began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tracelloc.heap.usable import formula_for, main_library
from tracelloc.model.blocks import EarlierBlocks, EarlierKind
from tracelloc.model.verdicts import Findings
from tracelloc.show.presentation.blocktypes import class_text
from tracelloc.show.presentation.naming import stack_title
from tracelloc.show.report.content import Entry, Request, SectionContent
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, format_size, plural, printable


@dataclass(frozen=True, slots=True)
class Likeness:
    """A stack that allocates most of the blocks of a size."""

    stack: int
    """Index in ``CallStacks``."""
    share: float
    """Share of the allocations of that size, by stacks that always allocate the same size."""


@dataclass(frozen=True, slots=True)
class _KindsPart(SectionContent):
    """Kinds of blocks, each with the stack that allocates such blocks now."""

    alike: Mapping[int, Likeness] = field(default_factory=dict)
    """By the kind's own stack."""

    @property
    def stacks(self) -> Set[int]:
        """The stacks that need names, by index."""
        shown = {entry.stack for entry in self.listed}
        return shown | {self.alike[each].stack for each in shown if each in self.alike}

    def entries(self, given: Request) -> Sequence[Entry]:
        """Entries of the section, once stacks have names."""
        return [self._with_allocator(given, entry) for entry in self.listed]

    def _with_allocator(self, given: Request, entry: Entry) -> Entry:
        like = self.alike.get(entry.stack)
        if like is None:
            return replace(entry, facts={**entry.facts, "alike": None})
        title = stack_title(given.namer.stack(given.snapshot, like.stack), like.stack)
        share = format_percent(like.share, 0)
        words = f"      {share} of such blocks are now allocated in {printable(title)}"
        facts = {"stack_id": like.stack, "share": round(like.share, 4), "allocated_in": title}
        return replace(entry, facts={**entry.facts, "alike": facts}, more=[words])


_LEAST_COUNT: Final = 10
"""Allocations of a stack before its size says something."""
_LEAST_SHARE: Final = 0.5
_SEEN: Final = 0.999
"""Part of the heap below which a report says how much was seen."""


def earlier_part(given: Request) -> SectionContent | None:
    """Lists the kinds with most bytes; None if earlier blocks are not in the figures."""
    snapshot, earlier = given.snapshot, given.snapshot.earlier
    if earlier is None:
        return None
    stats = {stat.index: stat for stat in snapshot.stack_stats(_stacks(snapshot, earlier))}
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
        text = f"{format_size(stat.live_bytes)} in {plural(stat.live_count, 'block')} {_of(kind)}"
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
        novelties.add((kind.stack, count.bit_length(), like and like.stack))
        entries.append(Entry(kind.stack, text, figures, has_frames=False))
    freed = earlier.size_bytes - live_bytes
    amount = f"{format_size(live_bytes)} in {plural(live_count, 'block')}"
    title = (
        f"==> allocated before tracing: {amount}, {format_size(freed)} freed since; "
        f"{len(entries)} top kinds out of {len(live):,}:"
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
    return _KindsPart(lines, facts, "top_kinds", entries, novelties=novelties, alike=alike)


def _stacks(snapshot: Snapshot, earlier: EarlierBlocks) -> list[int]:
    counts = snapshot.totals.live_count
    return [kind.stack for kind in earlier.kinds if counts[kind.stack]]


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
            found[kind.stack] = Likeness(int(alike[counts[alike].argmax()]), share)
    return found
