"""Rows that stand for several stacks, which Enter expands.

Stacks that leak or grow together are one row, and so are blocks from before tracing, stacks with
equal names and verdicts, and stacks of a single block each that have no verdict yet. Other rows
with equal texts say what differs.
"""

import re
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import I64, Mask
from tracelloc.model.verdicts import CODE_OF, VERDICTS, Suspect, Verdict
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.show.presentation.suspects import (
    STACKS_NAMED,
    folded_title,
    lost_bytes,
    shared_function,
    suspect_title,
    suspects_of,
)
from tracelloc.text import format_size, plural
from tracelloc.ui.tableview import clean
from tracelloc.ui.view import ViewSelection

_MOST_NAMED: Final = 64  # Most groups that are named after their shared frame
_LEAST_OTHERS: Final = 3
_COUNT: Final = re.compile(r" ×[\d,]+ stacks")
# Share of the live bytes from which a single block has a row of its own.
_OTHERS_SHARE: Final = 0.01
# Verdicts that blocks from before tracing have as long as nothing sets them apart.
_OLD: Final = [CODE_OF[each] for each in (Verdict.EARLIER, Verdict.LOST, Verdict.DECIDING)]


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group's row."""

    lead: int  # Identifies the group: the address of the shared frame, or one of its stacks
    members: I64 = field(compare=False)  # Its listed stacks, those with the largest share first
    title: str = field(compare=False)  # Text of the group's row
    verdict: Verdict | None = field(compare=False)
    rate: int = field(compare=False)  # Growth in bytes per minute
    is_one: bool = field(compare=False)  # Whether they are judged as one; else `rate` is a sum

    @property
    def stack(self) -> int:
        return int(self.members[0])


@dataclass(frozen=True, slots=True)
class Grouping:
    """The keys of the rows, and the stacks that are rows of an expanded group."""

    order: Sequence[Hashable]
    inside: frozenset[int] = frozenset()
    # Of rows with equal texts, what differs: `` via strdup``, ``, 64 B each``
    notes: Mapping[Hashable, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RowStacks:
    """Rows that have no keys yet: the stacks of one row after those of another."""

    stacks: I64
    starts: I64  # Where each row's stacks begin. The rows of suspects come first.
    suspects: Sequence[Sequence[Suspect]]
    titles: Sequence[str]  # Titles of the rows after those of the suspects

    def sorted_by(self, order: I64, ranks: I64, weights: I64) -> I64:
        """Returns the rows' numbers: lowest rank first, then largest weight, then as ``order``."""
        first, is_group = self.stacks[self.starts], self.sizes > 1
        positions = np.zeros(len(ranks), np.int64)
        positions[order] = np.arange(len(order))
        sums = np.add.reduceat(weights[self.stacks], self.starts)
        return np.lexsort((positions[first], is_group, -sums, ranks[first]))

    @property
    def sizes(self) -> I64:
        return np.diff(self.starts, append=len(self.stacks))

    def members(self, row: int) -> I64:
        return self.stacks[self.starts[row] :][: self.sizes[row]]


def grouped(selection: ViewSelection, order: I64, ranks: I64, weights: I64, most: int) -> Grouping:
    """Replaces each group's listed stacks with one row. Returns about the first ``most`` rows.

    ``order``: the listed stacks; ``ranks``, ``weights``: the rows' sort keys, per stack.
    """
    if not len(order):
        return Grouping(())
    found = _rows_of(selection, order)
    numbers = found.sorted_by(order, ranks, weights)[:most]
    rows: list[Hashable] = found.stacks[found.starts[numbers]].tolist()
    inside: set[int] = set()
    # From the end, as an expanded group moves the rows below it.
    for at in np.flatnonzero(found.sizes[numbers] > 1)[::-1].tolist():
        rows[at] = key = _key(selection, found, int(numbers[at]))
        if key.lead in selection.settings.expanded:
            members = key.members.tolist()
            rows[at + 1 : at + 1] = members
            inside.update(members)
    return Grouping(rows, frozenset(inside), _what_differs(selection, rows[:_MOST_NAMED], inside))


def _what_differs(
    selection: ViewSelection, rows: Sequence[Hashable], inside: Container[int]
) -> dict[Hashable, str]:
    labels, notes = selection.names.labels, dict[Hashable, str]()
    same: dict[str, list[tuple[Hashable, int]]] = {}
    for key in rows:
        stack = key.stack if isinstance(key, GroupKey) else cast(int, key)
        if key not in inside and labels.fresh[stack]:
            text = _COUNT.sub("", key.title[2:]) if isinstance(key, GroupKey) else labels[stack]
            same.setdefault(text, []).append((key, stack))
    for found in (rows for rows in same.values() if len(rows) > 1):
        kinds = [
            [_hidden_callee(selection, stack) for _, stack in found],
            [_block_size(selection, stack) for _, stack in found],
        ]
        kinds.append(["".join(pair) for pair in zip(*kinds, strict=True)])
        words = max(kinds, key=lambda each: len(set(each)))
        if len(set(words)) > 1:
            notes |= {key: word for (key, _), word in zip(found, words, strict=True)}
    return notes


def _hidden_callee(selection: ViewSelection, stack: int) -> str:
    named = selection.namer.stack(selection.snapshot, stack)
    count = next((at for at, hidden in enumerate(named.hidden) if not hidden), 0)
    symbol = named.frames[count - 1].symbol if count else None
    return f" via {clean(shorten(symbol))}" if symbol else ""


def _block_size(selection: ViewSelection, stack: int) -> str:
    count = int(selection.figures.live_count[stack])
    mean = round(int(selection.figures.live_bytes[stack]) / max(count, 1))
    return f", {format_size(mean)} each" if count > 1 else f", {format_size(mean)}"


def _rows_of(selection: ViewSelection, order: I64) -> _RowStacks:
    rest = np.zeros(len(selection.snapshot.totals), np.bool_)
    rest[order] = True
    suspects, parts = [], []
    for several, members in _suspects(selection, rest.copy()):
        suspects.append(several)
        parts.append((members, np.zeros(1, np.int64)))
        rest[members] = False
    titles: list[str] = []
    order = order[rest[order]]
    are_old = _are_old(selection)[order]
    old, order = order[are_old], order[~are_old]
    if len(old):
        old, titles = _old_row(selection, old)
        parts.append((old, np.zeros(1, np.int64)))
    are_others = _are_others(selection)[order]
    others, order = order[are_others], order[~are_others]
    if len(others) >= _LEAST_OTHERS:
        titles.append(f"others: {len(others):,} stacks of one block")
        parts.append((others, np.zeros(1, np.int64)))
    elif len(others):
        parts.append((others, np.arange(len(others))))
    is_named = selection.names.labels.fresh[order]
    parts.append(_by_name(selection, order[is_named]))
    unnamed = order[~is_named]
    parts.append((unnamed, np.arange(len(unnamed))))
    before = np.cumsum([0, *(len(stacks) for stacks, _ in parts)])
    stacks = np.concatenate([stacks for stacks, _ in parts])
    starts = [starts + begin for (_, starts), begin in zip(parts, before, strict=False)]
    return _RowStacks(stacks, np.concatenate(starts), suspects, titles)


def _old_row(selection: ViewSelection, old: I64) -> tuple[I64, list[str]]:
    """Returns the stacks of the row of old blocks, lost ones first, and its title."""
    verdicts = selection.verdicts
    if verdicts is not None:
        old = old[np.argsort(-verdicts[old].astype(np.int64), kind="stable")]
    lost = lost_bytes(selection.snapshot)[1]
    part = f", {format_size(lost)} lost" if lost else ""
    return old, [f"from before tracing{part} ({plural(len(old), 'size')})"]


def with_one_old_row(
    selection: ViewSelection, order: I64, values: I64 | None, most: int, *, descending: bool
) -> Grouping:
    """Replaces blocks from before tracing with one row. Returns about the first ``most`` rows.

    ``order``: the listed stacks. ``values``: the figures that rows are sorted by and groups add
    up; None: there are none, and the row stands where its first stack did.
    """
    are_old = _are_old(selection)[order]
    if are_old.sum() < 2:
        return Grouping(order[:most].tolist())
    old, rest = order[are_old], order[~are_old][:most]
    place = int(are_old.argmax())
    if values is not None:
        sign = -1 if descending else 1
        place = int(np.searchsorted(sign * values[rest], sign * values[old].sum()))
    members, titles = _old_row(selection, old)
    key = _key(selection, _RowStacks(members, np.zeros(1, np.int64), (), titles), 0)
    inside = members.tolist() if key.lead in selection.settings.expanded else []
    rows = [*rest[:place].tolist(), key, *inside, *rest[place:].tolist()]
    return Grouping(rows, frozenset(inside))


def _suspects(selection: ViewSelection, listed: Mask) -> Iterator[tuple[list[Suspect], I64]]:
    """Yields the suspects of each row with their stacks: those with equal names are one row."""
    labels, rows = selection.names.labels, dict[Hashable, list[tuple[Suspect, I64]]]()
    for suspect in suspects_of(selection.snapshot):
        members = np.array([each.stack for each in suspect.members], np.int64)
        members = members[listed[members]]
        names = set(labels.numbers[members].tolist())
        is_named = len(names) == 1 and labels.fresh[members].all()
        key = (names.pop(), suspect.judgement.verdict) if is_named else id(suspect)
        rows.setdefault(key, []).append((suspect, members))
    for found in rows.values():
        if len(stacks := np.concatenate([members for _, members in found])) > 1:
            yield [suspect for suspect, _ in found], stacks


def _are_old(selection: ViewSelection) -> Mask:
    """Returns a mask of blocks from before tracing that no verdict sets apart."""
    mask, verdicts = selection.snapshot.are_earlier, selection.verdicts
    if selection.change is not None:
        return np.zeros(len(mask), np.bool_)
    return mask if verdicts is None else mask & np.isin(verdicts, _OLD)


def _are_others(selection: ViewSelection) -> Mask:
    figures, verdicts = selection.figures, selection.verdicts
    if selection.change is not None or verdicts is None:
        return np.zeros(len(figures.live_count), np.bool_)
    are_others: Mask = (verdicts == CODE_OF[Verdict.DECIDING]) & (figures.live_count == 1)
    are_others &= figures.live_bytes < _OTHERS_SHARE * figures.live_bytes.sum()
    return are_others


def _by_name(selection: ViewSelection, stacks: I64) -> tuple[I64, I64]:
    """Returns stacks ordered by name and verdict, and where each name and verdict begins."""
    names, verdicts = selection.names.labels.numbers[stacks], selection.verdicts
    if verdicts is not None:
        names = names * len(VERDICTS) + verdicts[stacks]
    by_name = np.argsort(names, kind="stable")
    return stacks[by_name], np.flatnonzero(np.diff(names[by_name], prepend=-1))


def _key(selection: ViewSelection, rows: _RowStacks, row: int) -> GroupKey:
    members, verdicts = rows.members(row), selection.verdicts
    verdict: Verdict | None
    several = rows.suspects[row] if row < len(rows.suspects) else ()
    if is_one := len(several) == 1:
        suspect = several[0]
        lead = int(members[0]) if suspect.frame is None else suspect.frame
        title = _title(selection, suspect, len(members), named=row < _MOST_NAMED)
        verdict, rate = suspect.judgement.verdict, round(suspect.judgement.rate_bytes_per_min)
    else:
        lead, rate = -1 - int(members.min()), int(selection.growth[members].sum())
        verdict = None if verdicts is None else VERDICTS[verdicts[members[0]]]
        at = row - len(rows.suspects)
        if 0 <= at < len(rows.titles):
            title = rows.titles[at]
        else:
            title = folded_title(selection.names.labels[int(members[0])], len(members))
    mark = "▾" if lead in selection.settings.expanded else "▸"
    return GroupKey(lead, members, f"{mark} {title}", verdict, rate, is_one)


def _title(selection: ViewSelection, suspect: Suspect, count: int, *, named: bool) -> str:
    names, snapshot = selection.names, selection.snapshot
    if not named:
        return suspect_title(None, [names.label(snapshot, suspect.stack)], None, count)
    labels = (names.label(snapshot, member.stack) for member in suspect.members[:STACKS_NAMED])
    shared = shared_function(snapshot, selection.namer, suspect)
    stack = selection.namer.stack(snapshot, suspect.stack)
    return clean(suspect_title(stack, labels, shared, count))
