"""The cells of rows that stand for a call stack or for a group of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.text import Text

from tracelloc.model.figures import I64
from tracelloc.model.verdicts import VERDICTS, Verdict
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
from tracelloc.ui.tableview import (
    Cell,
    TitleCell,
    growth_cell,
    short_count,
    sparkline,
    verdict_cell,
)
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


Figures = dict[str, tuple[npt.NDArray[Any], Callable[[Any], str]]]
"""By name, a value per stack, and its format."""


def figure_columns(selection: ViewSelection) -> Figures:
    """Returns the columns of figures: values per stack, and their format."""
    snapshot, figures, change = selection.snapshot, selection.figures, selection.change
    about = about_of(snapshot.sample_bytes)
    return {
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
        self, selection: ViewSelection, columns: Figures, inside: frozenset[int] = frozenset()
    ) -> None:
        """``inside``: stacks that are rows of an expanded group."""
        self._selection = selection
        self._columns = columns
        self._inside = inside
        self._special: dict[str, Callable[[GroupKey | int], Cell]] = {
            "name": self._name,
            "verdict": lambda key: verdict_cell(self._verdict(key)),
            "growth": self._growth,
            "history": self._history,
            "process": self._process,
        }

    def cell(self, key: Hashable, column: str) -> Cell:
        """Returns the content of a row in a column."""
        assert isinstance(key, GroupKey | int)
        last = key.members.max() if isinstance(key, GroupKey) else key
        # After a step back in a recording, rows may still be those of later stacks.
        if last >= len(self._selection.snapshot.totals):
            return ""
        if column in self._special:
            return self._special[column](key)
        values, written = self._columns[column]
        if isinstance(key, GroupKey):
            value = values[key.members].sum() if column in ADDED else values[key.stack]
        else:
            value = values[key]
        return written(value.item())

    def _name(self, key: GroupKey | int) -> Cell:
        search = self._selection.settings.search
        if isinstance(key, GroupKey):
            return name_cell(key.title, search)
        mark = "  └ " if key in self._inside else ""
        return name_cell(mark + self._selection.names.labels.shown(key), search)

    def _verdict(self, key: GroupKey | int) -> Verdict | None:
        if isinstance(key, GroupKey):
            return key.verdict
        verdicts = self._selection.verdicts
        return None if verdicts is None else VERDICTS[verdicts[key]]

    def _growth(self, key: GroupKey | int) -> Cell:
        rate = key.rate if isinstance(key, GroupKey) else int(self._selection.growth[key])
        return growth_cell(rate, self._verdict(key))

    def _history(self, key: GroupKey | int) -> Cell:
        snapshot, stacks = self._selection.snapshot, _stacks_of(key)
        held, totals = snapshot.history.series(stacks)[1], snapshot.totals
        now = int((totals.allocated_bytes[stacks] - totals.freed_bytes[stacks]).sum())
        return Text(sparkline(sample_evenly([*held, now], 8), 8), "dim")

    def _process(self, key: GroupKey | int) -> Cell:
        """Returns the process that has the blocks, or how many have."""
        merged, stacks = self._selection.snapshot.merged, _stacks_of(key)
        assert merged is not None
        sharing = merged.sharing[stacks]
        numbers = set(merged.main_process[stacks].tolist())
        if sharing.max() > 1:
            return f"{sharing.max():,} processes" if len(stacks) == 1 else "several"
        if len(numbers) > 1:
            return "several"
        number = numbers.pop()
        return "ended" if number < 0 else target_name(self._selection.trace.snapshot_of(number))


def _stacks_of(key: GroupKey | int) -> I64:
    return key.members if isinstance(key, GroupKey) else np.array([key])
