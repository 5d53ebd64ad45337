"""The view of functions: live bytes that each one allocated, alone and with its callees."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass, field, replace
from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.calltree import Step, shown_name
from tracelloc.show.tables import Column, Columns
from tracelloc.text import about_of, format_percent, format_size
from tracelloc.ui.stacknames import Search
from tracelloc.ui.stackviews import MOST_ROWS, name_cell
from tracelloc.ui.tableview import Cell, Heading, Table, TableRows, clean, growth_cell, short_count
from tracelloc.ui.view import Settings, Sorting, TraceSource, View, ViewSelection

COLUMNS: Final[Columns[Any]] = (
    Column("own", "own", 11), Column("bytes", "own + callees", 13),
    Column("share", "share", 7, sorts=False), Column("growth", "growth/min", 12),
    Column("count", "blocks", 9, from_width=84), Column("name", "function", 0, descending=False),
    Column("module", "module", 18, left=True, from_width=100, wide=40, sorts=False),
)  # fmt: skip
_BUDGET_S: Final = 0.05  # Time limit per picture for naming stacks
_AT_ONCE: Final = 256  # Stacks that are named between two looks at the time
# Stands for the functions of stacks that are named in the next picture.
COUNTING: Final = Step("[not counted yet]", None)
_NO_STACK: Final = NamedStack((), ())


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """Key of a row: a function, or a caller or callee of the expanded function."""

    step: Step
    role: str = ""  # Empty for a function; else whether it is caller or callee
    # Bytes of the stacks that contain both functions; only set for callers and callees.
    size_bytes: int = field(default=0, compare=False)


@dataclass(slots=True)
class _Path:
    stack: NamedStack
    ids: Sequence[int]
    unique: Collection[int]  # The numbers without repetitions by recursion
    version: tuple[int, int]  # Version of the names


class _Columns:
    """The paths of stacks, by which figures per stack are summed up per function."""

    def __init__(self, stacks: I64, paths: Sequence[_Path]) -> None:
        self.stacks, self.paths = stacks, paths
        inner = np.array([path.ids[0] if path.ids else -1 for path in paths], np.int64)
        self._has_inner = inner >= 0
        self._inner = inner[self._has_inner]
        self._lengths = np.array([len(path.unique) for path in paths], np.int64)
        every = chain.from_iterable(path.unique for path in paths)
        self._every = np.fromiter(every, np.int64, int(self._lengths.sum()))

    def own(self, weights: I64, functions: int) -> I64:
        """Sums a figure of the stacks per function that allocates; ``functions``: how many."""
        return _sums(self._inner, weights[self._has_inner], functions)

    def totals(self, weights: I64, functions: int) -> I64:
        """Sums a figure of the stacks per function and its callees; recursion counts once."""
        return _sums(self._every, np.repeat(weights, self._lengths), functions)


def _sums(numbers: I64, weights: I64, count: int) -> I64:
    return np.bincount(numbers, weights, count).astype(np.int64)


class Functions:
    """Numbers functions, and caches stacks as paths of numbers while names do not change."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[Step, int] = {}
        self._paths: dict[int, _Path] = {}
        # Numbers by (identity of the frame, label), of frames with the names of a version
        self._frames: dict[tuple[int, str | None], tuple[Frame, int]] = {}
        self._version: tuple[int, int] | None = None
        # Columns of the last picture; of no stacks if it lacked some
        self._columns = _Columns(np.zeros(0, np.int64), ())

    def number(self, step: Step) -> int:
        found = self._numbers.setdefault(step, len(self.steps))
        if found == len(self.steps):
            self.steps.append(step)
        return found

    def columns(self, selection: ViewSelection) -> _Columns:
        """Returns stacks as function numbers; those not named in time share one."""
        version, stacks = selection.namer.version, np.sort(selection.unsearched)
        if version == self._version and np.array_equal(stacks, self._columns.stacks):
            return self._columns
        if version != self._version:
            self._version = version
            self._frames.clear()
        left = self._find_paths(selection)
        selection.names.pending += left
        number = self.number(COUNTING)
        uncounted = _Path(_NO_STACK, (number,), (number,), version)
        paths = [self._paths.get(index, uncounted) for index in stacks.tolist()]
        found = _Columns(stacks, paths)
        is_whole = not left and all(path.stack.frames for path in paths)
        self._columns = found if is_whole else _Columns(stacks[:0], ())
        return found

    def _find_paths(self, selection: ViewSelection) -> int:
        """Names stacks, the heaviest first, as long as there is time. Returns how many are left."""
        fresh, end_s = 0, time.monotonic() + _BUDGET_S
        version, stacks = selection.namer.version, selection.unsearched.tolist()
        for at, index in enumerate(stacks):
            known = self._paths.get(index)
            if known is not None and known.version == version and (
                # Frames may come later than a stack's id.
                known.stack.frames or not selection.snapshot.frames(index)
            ):  # fmt: skip
                continue
            fresh += 1
            if fresh % _AT_ONCE == 0 and time.monotonic() > end_s:
                return len(stacks) - at
            stack = selection.namer.stack(selection.snapshot, index)
            ids = self._ids(stack)
            unique = set(ids)
            # Most are not recursive.
            once = ids if len(unique) == len(ids) else unique
            self._paths[index] = _Path(stack, ids, once, version)
        return 0

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
    def __init__(self, functions: Functions, selection: ViewSelection) -> None:
        snapshot, figures = selection.snapshot, selection.figures
        self._functions = functions
        self._settings = selection.settings
        columns = functions.columns(selection)
        stacks, count = columns.stacks, len(functions.steps)
        self._paths, self._weights = columns.paths, figures.live_bytes[stacks]
        self._total = columns.totals(self._weights, count)
        self._columns = {
            "own": columns.own(self._weights, count),
            "bytes": self._total,
            "growth": columns.totals(snapshot.growth_per_min[stacks], count),
            "count": columns.totals(figures.live_count[stacks], count),
        }
        self._about = about_of(snapshot.sample_bytes)
        self._whole = max(int(self._weights.sum()), 1)

    def cell(self, key: Hashable, column: str) -> Cell:
        assert isinstance(key, FunctionKey)
        number, about = self._functions.number(key.step), self._about
        if column == "module":
            return clean(base_name(key.step.module or ""))
        if column == "name":
            is_open = self._settings.function == key.step and not key.role
            mark = "  " if key.role else "▾ " if is_open else ""
            return name_cell(f"{mark}{clean(key.step.name)}", self._settings.search)
        size_bytes = key.size_bytes if key.role else int(self._total[number])
        if column in ("share", "bytes"):
            share = format_percent(size_bytes / self._whole)
            return share if column == "share" else about + format_size(size_bytes)
        value = int(self._columns[column][number])
        if column == "growth":
            return "" if key.role else growth_cell(value)
        return "" if key.role else about + _WRITTEN[column](value)

    def _numbers(self) -> list[int]:
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


def function_rows(_source: TraceSource) -> Callable[[ViewSelection], TableRows]:
    """Returns a function that makes a row per function, with a ``FunctionKey`` as its key."""
    functions = Functions()

    def rows(selection: ViewSelection) -> TableRows:
        made, sorting = _Rows(functions, selection), selection.settings.sorting
        keys = list(made.keys())
        why = "" if keys else selection.why_empty
        return TableRows(keys, made.cell, sorting.column, sorting.descending, why)

    return rows


def _expanded(key: FunctionKey, settings: Settings) -> Settings:
    is_shown = settings.function == key.step and not key.role
    return replace(settings, function=None if is_shown else key.step)


FUNCTIONS: Final = View(
    "Functions", "F", function_rows, lambda: Table(COLUMNS), Sorting("bytes"), _expanded, "Callers"
)
