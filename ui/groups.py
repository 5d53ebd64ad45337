"""Rows that stand for several stacks, which Enter expands.

Stacks that leak or grow together are one row, and so are those with equal names, and those of a
single block each about which it is too early to say anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tracelloc.model.verdicts import CODE_OF, VERDICTS, Suspect, Verdict
from tracelloc.show.presentation.sharedframes import STACKS_NAMED, shared_function
from tracelloc.show.presentation.suspects import folded_title, suspect_title, suspects_of
from tracelloc.ui.tableview import clean
from tracelloc.ui.view import Settings, ViewSelection

_MOST_NAMED: Final = 64
"""Most groups that are named after their shared frame."""
_LEAST_OTHERS: Final = 3
_OTHERS_SHARE: Final = 0.01
"""Share of the live bytes from which a single block has a row of its own."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group's row."""

    lead: int
    """Identifies the group: the address of the shared frame, or one of its stacks."""
    members: tuple[int, ...] = field(compare=False)
    """The listed stacks of the group, those with the largest share first."""
    title: str = field(compare=False)
    verdict: Verdict | None = field(compare=False)
    rate: int | None = field(compare=False, default=None)
    """Bytes per minute if the stacks are judged as one; None: the sum of theirs."""

    @property
    def stack(self) -> int:
        """The stack that represents the group."""
        return self.members[0]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The keys of the rows, and the stacks that are rows of an expanded group."""

    order: Sequence[Hashable]
    inside: frozenset[int] = frozenset()


def grouped(
    selection: ViewSelection,
    order: Sequence[int],
    place: Callable[[Sequence[int]], tuple[int, int]],
) -> Grouping:
    """Replaces each group's listed stacks with one row. ``place``: a row's sort key."""
    groups = [*_suspects(selection, order)]
    keys = {stack: key for key in groups for stack in key.members}
    for key in _folded(selection, [stack for stack in order if stack not in keys]):
        groups.append(key)
        keys |= dict.fromkeys(key.members, key)
    if not groups:
        return Grouping(order)
    expanded = selection.settings.expanded
    rows: list[Hashable] = []
    inside: set[int] = set()
    alone = [(stack,) for stack in order if stack not in keys]
    for members in sorted([*alone, *(key.members for key in groups)], key=place):
        found = keys.get(members[0])
        rows.append(members[0] if found is None else found)
        if found is not None and found.lead in expanded:
            rows.extend(members)
            inside.update(members)
    return Grouping(rows, frozenset(inside))


def _suspects(selection: ViewSelection, order: Sequence[int]) -> Iterable[GroupKey]:
    """Yields the groups of stacks that leak or grow together."""
    listed, named = set(order), 0
    for suspect in suspects_of(selection.snapshot):
        members = tuple(each.stack for each in suspect.members if each.stack in listed)
        if len(members) > 1:
            lead = members[0] if suspect.frame is None else suspect.frame
            title = _title(selection, suspect, len(members), named=named < _MOST_NAMED)
            rate = round(suspect.judgement.rate_bytes_per_min)
            yield _key(selection, lead, members, title, suspect.judgement.verdict, rate)
            named += 1


def _folded(selection: ViewSelection, order: Sequence[int]) -> Iterable[GroupKey]:
    """Yields the groups of stacks with equal names and verdicts, and of single blocks."""
    labels, verdicts, figures = selection.names.labels, selection.verdicts, selection.figures
    least_bytes = _OTHERS_SHARE * figures.live_bytes.sum()
    few = (figures.live_count == 1) & (figures.live_bytes < least_bytes)
    if selection.change is not None or verdicts is None:
        few[:] = False
    else:
        few &= verdicts == CODE_OF[Verdict.DECIDING]
    listed = np.array(order, np.intp)
    others = listed[few[listed]].tolist()
    named = listed[~few[listed] & labels.fresh[listed]]
    codes = itertools.repeat(-1) if verdicts is None else verdicts[named].tolist()
    equal: dict[tuple[str, int], list[int]] = {}
    for stack, code in zip(named.tolist(), codes, strict=False):
        equal.setdefault((labels[stack], code), []).append(stack)
    for (label, code), stacks in equal.items():
        if len(stacks) > 1:
            title = folded_title(label, len(stacks))
            verdict = None if code < 0 else VERDICTS[code]
            yield _key(selection, -1 - min(stacks), tuple(stacks), title, verdict)
    if len(others) >= _LEAST_OTHERS:
        title = f"others: {len(others):,} stacks of one block"
        yield _key(selection, -1 - min(others), tuple(others), title, Verdict.DECIDING)


def _key(  # noqa: PLR0917
    selection: ViewSelection, lead: int, members: tuple[int, ...], title: str,
    verdict: Verdict | None, rate: int | None = None,
) -> GroupKey:  # fmt: skip
    mark = "▾" if lead in selection.settings.expanded else "▸"
    return GroupKey(lead, members, f"{mark} {title}", verdict, rate)


def _title(selection: ViewSelection, suspect: Suspect, count: int, *, named: bool) -> str:
    names, snapshot = selection.names, selection.snapshot
    if not named:
        return suspect_title(None, [names.label(snapshot, suspect.stack)], None, count)
    labels = (names.label(snapshot, member.stack) for member in suspect.members[:STACKS_NAMED])
    shared = shared_function(snapshot, selection.namer, suspect)
    stack = selection.namer.stack(snapshot, suspect.stack)
    return clean(suspect_title(stack, labels, shared, count))


def toggled(key: GroupKey, settings: Settings) -> Settings:
    """Returns settings with the group expanded, or collapsed again."""
    return replace(settings, expanded=settings.expanded ^ {key.lead})
