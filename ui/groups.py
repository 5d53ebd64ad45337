"""Groups of stacks that leak or grow together: a single row that Enter expands."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tracelloc.model.verdicts import Suspect
from tracelloc.show.presentation.naming import frame_name, source_place
from tracelloc.show.presentation.sharedframes import shared_function
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.show.presentation.suspects import suspects_of
from tracelloc.ui.tableview import clean
from tracelloc.ui.view import Settings, ViewSelection

_MOST_NAMED: Final = 64
"""Most groups that are named after their shared frame."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group's row."""

    lead: int
    """Identifies the group: the address of the shared frame, or its first stack."""
    members: tuple[int, ...] = field(compare=False)
    """The listed stacks of the group, those with the largest share first."""
    title: str = field(compare=False)
    suspect: Suspect = field(compare=False)

    @property
    def stack(self) -> int:
        """The stack that represents the group."""
        return self.members[0]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The keys of the rows, and the stacks that are rows of an expanded group."""

    order: Sequence[Hashable]
    inside: frozenset[int] = frozenset()


def grouped(selection: ViewSelection, order: Sequence[int]) -> Grouping:
    """Replaces each group's listed stacks with one row, in the place of the first of them."""
    listed = set(order)
    expanded = selection.settings.expanded
    keys: dict[int, GroupKey] = {}
    for suspect in suspects_of(selection.snapshot):
        members = tuple(each.stack for each in suspect.members if each.stack in listed)
        if len(members) > 1:
            lead = members[0] if suspect.frame is None else suspect.frame
            title = _title(selection, suspect, len(members), named=len(keys) < _MOST_NAMED)
            mark = "▾" if lead in expanded else "▸"
            key = GroupKey(lead, members, f"{mark} {title}", suspect)
            keys |= dict.fromkeys(members, key)
    if not keys:
        return Grouping(order)
    rows: list[Hashable] = []
    seen: set[int] = set()
    inside: set[int] = set()
    for stack in order:
        found = keys.get(stack)
        if found is None:
            rows.append(stack)
        elif found.lead not in seen:
            seen.add(found.lead)
            rows.append(found)
            if found.lead in expanded:
                rows.extend(found.members)
                inside.update(found.members)
    return Grouping(rows, frozenset(inside))


def _title(selection: ViewSelection, suspect: Suspect, count: int, *, named: bool) -> str:
    """``make_pair (4 stacks, pair.c:41)``."""
    shared = shared_function(selection.snapshot, selection.namer, suspect) if named else None
    stack = selection.namer.stack(selection.snapshot, suspect.stack)
    plain = (part.frame for part in stack.parts() if part.frame is not None and not part.label)
    if shared is None or frame_name(shared.frame) not in map(frame_name, plain):
        # If filters hide the shared frame (a wrapper or runtime), the stack's own name says more.
        name, _, _ = selection.names.label(selection.snapshot, suspect.stack).partition(" ← ")
        return f"{name.partition(' (')[0]} ({count} stacks)"
    place = source_place(shared.frame)
    symbol = shared.frame.symbol
    name = frame_name(shared.frame) if symbol is None else shorten(symbol)
    return clean(f"{name} ({count} stacks{f', {place}' if place else ''})")


def toggled(key: GroupKey, settings: Settings) -> Settings:
    """Returns settings with the group expanded, or collapsed again."""
    return replace(settings, expanded=settings.expanded ^ {key.lead})
