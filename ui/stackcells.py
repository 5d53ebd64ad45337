"""The cells of rows that stand for a call stack or for a group of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, cast

import numpy.typing as npt
from rich.text import Text

from tracelloc.model.verdicts import VERDICTS, Verdict
from tracelloc.show.presentation.suspects import suspect_ranks
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_percent,
    format_size,
    signed_size,
)
from tracelloc.ui.groups import GroupKey
from tracelloc.ui.header import target_name
from tracelloc.ui.stacknames import Search
from tracelloc.ui.tableview import Cell, TitleCell, short_count, sparkline
from tracelloc.ui.verdictcells import growth_cell, verdict_cell
from tracelloc.ui.view import ViewSelection

FOUND: Final = "bold reverse"


def name_cell(name: str, search: str) -> Cell:
    """Returns the name as a cell that highlights the search's matches."""
    if not search:
        return TitleCell(name)
    text = Text(name)
    for match in Search(search).pattern.finditer(name):
        if match.end() > match.start():
            text.stylize(FOUND, match.start(), match.end())
    return text


def sample_evenly(values: Sequence[int], width: int) -> Sequence[int]:
    """Returns ``width`` of the values at even distances, the oldest and the newest included."""
    if len(values) <= width:
        return values
    last = len(values) - 1
    return [values[round(n * last / (width - 1))] for n in range(width)]


ADDED: Final = frozenset({"change", "bytes", "count", "share", "rate"})
"""Columns that a group sums over its stacks; in others it shows its first stack's figures."""


Columns = dict[str, tuple[npt.NDArray[Any], Callable[[Any], str]]]
"""By name, a value per stack to sort by, and its format."""


def figure_columns(selection: ViewSelection) -> Columns:
    """Returns the columns that rows can be sorted by: values per stack, and their format."""
    snapshot, figures, change = selection.snapshot, selection.figures, selection.change
    about = about_of(snapshot.sample_bytes)
    return {
        "verdict": (-suspect_ranks(snapshot), str),
        "change": (change if change is not None else figures.live_bytes, signed_size),
        "bytes": (figures.live_bytes, lambda value: about + format_size(value)),
        "count": (figures.live_count, lambda value: f"{about}{value:,}"),
        "growth": (selection.growth, signed_size),
        "share": (figures.share, format_percent),
        "rate": (figures.allocations_per_s, short_count),
        "age": (
            figures.mean_age_ns,
            lambda value: format_duration(value / NS_PER_S) if value >= 0 else "-",
        ),
        "temporary": (snapshot.totals.temporary_share, format_percent),
    }


class StackCells:
    """Returns cells by key and column."""

    def __init__(
        self, selection: ViewSelection, columns: Columns, inside: frozenset[int] = frozenset()
    ) -> None:
        """``inside``: stacks that are rows of an expanded group."""
        self._selection = selection
        self._columns = columns
        self._inside = inside
        self._special: dict[str, Callable[[Hashable, list[int]], Cell]] = {
            "name": self._name,
            "verdict": lambda key, stacks: verdict_cell(self._verdict(key, stacks)),
            "growth": self._growth,
            "history": self._history,
            "process": self._process,
        }

    def cell(self, key: Hashable, column: str) -> Cell:
        """Returns the content of a row in a column."""
        stacks = list(key.members) if isinstance(key, GroupKey) else [cast(int, key)]
        # After a step back in a recording, rows may still be those of later stacks.
        if max(stacks) >= len(self._selection.snapshot.totals):
            return ""
        if column in self._special:
            return self._special[column](key, stacks)
        values, written = self._columns[column]
        value = values[stacks].sum() if column in ADDED else values[stacks[0]]
        return written(value.item())

    def _name(self, key: Hashable, stacks: list[int]) -> Cell:
        search = self._selection.settings.search
        if isinstance(key, GroupKey):
            return name_cell(key.title, search)
        mark = "  └ " if key in self._inside else ""
        return name_cell(mark + self._selection.names.labels.shown(stacks[0]), search)

    def _verdict(self, key: Hashable, stacks: list[int]) -> Verdict | None:
        if isinstance(key, GroupKey):
            return key.verdict
        verdicts = self._selection.verdicts
        return None if verdicts is None else VERDICTS[verdicts[stacks[0]]]

    def _growth(self, key: Hashable, stacks: list[int]) -> Cell:
        growth = key.rate if isinstance(key, GroupKey) else None
        if growth is None:
            growth = int(self._selection.growth[stacks].sum())
        return growth_cell(growth, self._verdict(key, stacks))

    def _history(self, _key: Hashable, stacks: list[int]) -> Cell:
        snapshot = self._selection.snapshot
        held = snapshot.history.series(*stacks)[1]
        now = int(snapshot.totals.live_bytes[stacks].sum())
        return Text(sparkline(sample_evenly([*held, now], 8), 8), "dim")

    def _process(self, _key: Hashable, stacks: list[int]) -> Cell:
        """Returns the process that has the blocks, or how many have."""
        merged = self._selection.snapshot.merged
        assert merged is not None
        sharing = merged.sharing[stacks]
        numbers = set(merged.main_process[stacks].tolist())
        if sharing.max() > 1:
            return f"{sharing.max():,} processes" if len(stacks) == 1 else "several"
        if len(numbers) > 1:
            return "several"
        number = numbers.pop()
        return "ended" if number < 0 else target_name(self._selection.trace.snapshot_of(number))
