"""The view of functions: live bytes that each one allocated, alone and with its callees.

Enter on a function shows its callers and callees, with the bytes that pass through each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.show.presentation.calltree import Step, shown_name
from tracelloc.show.presentation.naming import NamedStack
from tracelloc.text import about_of, format_percent, format_size
from tracelloc.ui.stackcells import name_cell
from tracelloc.ui.stacknames import Search
from tracelloc.ui.stackviews import MOST_ROWS
from tracelloc.ui.tableview import Cell, Column, Heading, Table, TableRows, clean, short_count
from tracelloc.ui.verdictcells import growth_cell
from tracelloc.ui.view import Settings, Sorting, Source, View, ViewSelection

COLUMNS: Final = (
    Column("own", "own", 11),
    Column("bytes", "own + callees", 13),
    Column("share", "share", 7, sorts=False),
    Column("growth", "growth/min", 12),
    Column("count", "blocks", 9, from_width=84),
    Column("name", "function", 0, right=False, descending=False),
    Column("module", "module", 18, right=False, from_width=100, wide=40, sorts=False),
)
_BUDGET_S: Final = 0.1
"""Time limit per picture for naming stacks."""
_AT_ONCE: Final = 256
"""Stacks that are named between two looks at the time."""
_COUNTING: Final = Step("[not counted yet]", None)
"""Stands for the functions of stacks that are named in the next picture."""
_NO_STACK: Final = NamedStack((), ())


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """Key of a row: a function, or a caller or callee of the expanded function."""

    step: Step
    role: str = ""
    size_bytes: int = field(default=0, compare=False)
    """Bytes of the stacks that contain both functions; only set for callers and callees."""


@dataclass(slots=True)
class _Path:
    """A stack as function numbers, innermost first; ``unique`` has recursive functions once."""

    stack: NamedStack
    ids: Sequence[int]
    unique: Collection[int]
    version: tuple[int, int] | None = None
    """Of the names."""


class _Paths:
    """The paths of many stacks, in columns."""

    def __init__(self, paths: Sequence[_Path], functions: int) -> None:
        """``functions``: how many have numbers."""
        self._functions = functions
        inner = np.array([path.ids[0] if path.ids else -1 for path in paths], np.int64)
        self._has_inner = inner >= 0
        self._inner = inner[self._has_inner]
        self._lengths = np.array([len(path.unique) for path in paths], np.int64)
        every = chain.from_iterable(path.unique for path in paths)
        self._every = np.fromiter(every, np.int64, int(self._lengths.sum()))

    def own(self, weights: I64) -> I64:
        """Sums a figure of the stacks per function that allocates."""
        found = np.zeros(self._functions, np.int64)
        np.add.at(found, self._inner, weights[self._has_inner])
        return found

    def totals(self, weights: I64) -> I64:
        """Sums a figure of the stacks per function and its callees; recursion counts once."""
        found = np.zeros(self._functions, np.int64)
        np.add.at(found, self._every, np.repeat(weights, self._lengths))
        return found


class Functions:
    """Paths of stacks, cached between pictures while the stacks' names do not change."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[Step, int] = {}
        self._paths: dict[int, _Path] = {}
        self._frames: dict[tuple[int, str | None], tuple[Frame, int]] = {}
        """Numbers by (identity of the frame, label), of frames with the names of a version."""
        self._version: tuple[int, int] | None = None

    def number(self, step: Step) -> int:
        """Returns the number of a function."""
        found = self._numbers.get(step)
        if found is None:
            found = self._numbers[step] = len(self.steps)
            self.steps.append(step)
        return found

    def paths(self, selection: ViewSelection, stacks: Sequence[int]) -> list[_Path]:
        """Returns stacks as function numbers.

        Those that take too long are named in the next picture, and have one number until then.
        """
        version = selection.namer.version
        if self._version != version:
            self._version = version
            self._frames.clear()
        found: list[_Path] = []
        fresh, left, end_s = 0, 0, time.monotonic() + _BUDGET_S
        for index in stacks:
            known = self._paths.get(index)
            if known is None or known.version != version:
                fresh += 1
                if left or (fresh % _AT_ONCE == 0 and time.monotonic() > end_s):
                    left += 1
                    found.append(known or self._not_counted())
                    continue
            found.append(self._path(selection, index, known))
        selection.names.pending += left
        return found

    def _path(self, selection: ViewSelection, index: int, known: _Path | None) -> _Path:
        stack = selection.namer.stack(selection.snapshot, index)
        if known is None or known.stack is not stack:
            ids = self._ids(stack)
            unique = set(ids)
            # Most are not recursive.
            known = _Path(stack, ids, ids if len(unique) == len(ids) else unique)
            self._paths[index] = known
        known.version = selection.namer.version
        return known

    def _not_counted(self) -> _Path:
        number = self.number(_COUNTING)
        return _Path(_NO_STACK, (number,), (number,))

    def _ids(self, stack: NamedStack) -> list[int]:
        ids, known = [], self._frames
        for frame, hidden, label in zip(stack.frames, stack.hidden, stack.all_labels, strict=True):
            if hidden:
                continue
            key = id(frame), label
            found = known.get(key)
            if found is None:
                number = self.number(Step(shown_name(frame, label), frame.module))
                found = known[key] = frame, number  # the frame keeps its identity
            ids.append(found[1])
        return ids

    def neighbours(
        self, paths: Sequence[_Path], weights: Sequence[int], number: int
    ) -> tuple[Counter[int], Counter[int]]:
        """Returns the (callers, callees) of a function, with the bytes that pass between them."""
        callers: Counter[int] = Counter()
        callees: Counter[int] = Counter()
        for path, weight in zip(paths, weights, strict=True):
            if number in path.ids:
                pairs = {*zip(path.ids, path.ids[1:], strict=False)}
                callees.update({inner: weight for inner, outer in pairs if outer == number})
                callers.update({outer: weight for inner, outer in pairs if inner == number})
        return callers, callees


class _Rows:
    """The rows of one picture."""

    def __init__(self, functions: Functions, selection: ViewSelection) -> None:
        snapshot, figures, stacks = selection.snapshot, selection.figures, selection.unsearched
        self._functions = functions
        self._settings = selection.settings
        self._paths = functions.paths(selection, stacks.tolist())
        self._weights = figures.live_bytes[stacks]
        columns = _Paths(self._paths, len(functions.steps))
        self._total = columns.totals(self._weights)
        self._columns = {
            "own": columns.own(self._weights),
            "bytes": self._total,
            "growth": columns.totals(snapshot.growth_per_min[stacks]),
            "count": columns.totals(figures.live_count[stacks]),
        }
        self._about = about_of(snapshot.sample_bytes)
        self._whole = max(int(self._weights.sum()), 1)

    def cell(self, key: Hashable, column: str) -> Cell:
        """Returns the content of a column of the row."""
        assert isinstance(key, FunctionKey)
        number, about = self._functions.number(key.step), self._about
        if column in ("name", "module"):
            return self._name(key) if column == "name" else clean(base_name(key.step.module or ""))
        size_bytes = key.size_bytes if key.role else int(self._total[number])
        if column in ("share", "bytes"):
            share = format_percent(size_bytes / self._whole)
            return share if column == "share" else about + format_size(size_bytes)
        value = int(self._columns[column][number])
        if column == "growth":
            return "" if key.role else growth_cell(value, None)
        return "" if key.role else about + _WRITTEN[column](value)

    def _name(self, key: FunctionKey) -> Cell:
        is_open = self._settings.function == key.step and not key.role
        mark = "  " if key.role else "▾ " if is_open else ""
        return name_cell(f"{mark}{clean(key.step.name)}", self._settings.search)

    def _numbers(self) -> list[int]:
        """The numbers of the functions in the order of the rows."""
        steps, settings = self._functions.steps, self._settings
        numbers: list[int] = np.flatnonzero(self._total).tolist()
        if settings.search:
            matches = Search(settings.search).matches
            numbers = [number for number in numbers if matches(steps[number].name)]
        sorting = settings.sorting
        if sorting.column == "name":
            return sorted(numbers, key=lambda n: steps[n].name, reverse=sorting.descending)
        values = self._columns[sorting.column]
        sign = -1 if sorting.descending else 1
        return sorted(numbers, key=lambda number: sign * int(values[number]))

    def keys(self) -> Iterator[Hashable]:
        """Keys of the rows, including those of callers and callees."""
        steps = self._functions.steps
        for number in self._numbers()[:MOST_ROWS]:
            yield FunctionKey(steps[number])
            if self._settings.function == steps[number]:
                weights = self._weights.tolist()
                around = self._functions.neighbours(self._paths, weights, number)
                for title, found in zip(("callers", "callees"), around, strict=True):
                    yield Heading(f"{' ' * 60}  {title}{'' if found else ': none'}")
                    for other, size_bytes in found.most_common():
                        yield FunctionKey(steps[other], title, size_bytes)


_WRITTEN: Final[dict[str, Callable[[int], str]]] = {"own": format_size, "count": short_count}


def function_rows(_source: Source) -> Callable[[ViewSelection], TableRows]:
    """Makes one row per function; its key is a ``FunctionKey``."""
    functions = Functions()

    def rows(selection: ViewSelection) -> TableRows:
        made, sorting = _Rows(functions, selection), selection.settings.sorting
        keys = list(made.keys())
        why = "" if keys else selection.why_empty
        without = ("growth",) if selection.is_profile else ()
        return TableRows(keys, made.cell, sorting.column, sorting.descending, why, without)

    return rows


def _expanded(key: FunctionKey, settings: Settings) -> Settings:
    """Expands the function's callers and callees, or collapses them."""
    is_shown = settings.function == key.step and not key.role
    return replace(settings, function=None if is_shown else key.step)


FUNCTIONS: Final = View(
    name="functions",
    title="Functions",
    key="F",
    maker=function_rows,
    widget=lambda: Table(COLUMNS),
    choose=_expanded,
    enters="Callers",
    sorting=Sorting("bytes"),
)
