"""Births and survivors of blocks, per stack and slice of time.

Each stack has a row of figures per *slice* of time: how many blocks were born in it, how
many of those are alive, and their bytes. It also has a histogram of the lifetimes of the
blocks that died. Births and deaths alone update all figures: a block's stack and time of birth
are enough to find its slice.

A slice begins each second. If there is no room for another one, two neighbors are merged: those
whose common width is smallest relative to their age. So slices are about 0.13 of their age wide
after ten minutes and 0.25 after a day, and the newest are one second wide. The slices always
cover the whole traced time, at about 1.8 KiB per stack.

All figures but the floor can be added up over stacks: the sum of some stacks' rows is the row
of one stack that stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, replace
from tracelloc.heap.unreachable import NONE_UNREACHABLE, UnreachableBlocks, UnreachableTable
from tracelloc.model.figures import F64, I64, Totals
from tracelloc.text import NS_PER_S

Indices = npt.NDArray[Any]

_LEAST_COLUMNS: Final = 64


class CounterRows:
    """A fixed number of counter rows, zero at first. Not thread safe."""

    def __init__(self, rows: int) -> None:
        self.columns = _LEAST_COLUMNS  # Number of columns; rows may be shorter, with implied zeros
        self._rows: list[I64 | None] = [None] * rows

    def __len__(self) -> int:
        return len(self._rows)

    def fork(self) -> CounterRows:
        """Returns a copy; the two share each row until one is written to."""
        child = CounterRows(0)
        child.columns = self.columns
        for row in self._rows:
            if row is not None:
                row.setflags(write=False)
        child._rows = self._rows.copy()
        return child

    def own(self, at: int) -> I64:
        """Returns a row as a writable array of full length; copies it first if a fork shares it."""
        row = self._rows[at]
        if row is None or len(row) < self.columns or not row.flags.writeable:
            grown = np.zeros(self.columns, np.int64)
            if row is not None:
                grown[: len(row)] = row
            row = self._rows[at] = grown
        return row

    def set(self, at: int, figures: I64) -> None:
        self._rows[at] = figures.copy()

    def fold(self, into: int, at: int) -> None:
        row, self._rows[at] = self._rows[at], None
        if row is not None:
            self.own(into)[: len(row)] += row

    def fold_lowest(self, into: int, at: int) -> None:
        """Keeps the lower figures of two rows, at least 0, in ``into``, and resets row ``at``."""
        row, self._rows[at] = self._rows[at], None
        kept = self._rows[into]
        if row is None or kept is None:
            self._rows[into] = None
        else:
            self._rows[into] = np.minimum(kept[: len(row)], row[: len(kept)])

    def gather(self, rows: Indices, columns: int) -> I64:
        found = np.zeros((len(rows), columns), np.int64)
        for into, at in zip(found, rows.tolist(), strict=True):
            row = self._rows[at]
            if row is not None:
                into[: len(row)] = row[:columns]
        return found


Stacks = npt.NDArray[Any]  # Indices of stacks

SLICES: Final = 48  # Most slices
SLICE_NS: Final = NS_PER_S  # Initial width of slices
_PAUSE_SLICES: Final = 8  # After a pause of more slices than this, one slice covers all of it
_AGE_OFFSET_NS: Final = 4 * SLICE_NS  # Added to ages, so that the newest slices differ
LIFETIMES: Final = 32  # Classes of lifetimes: half octaves
SHORTEST_NS: Final = NS_PER_S // 16  # Lower bound of the first class; shorter ones are in none
# Lower bounds of the classes: 62 ms to 48 min; the last one is open.
LIFETIME_EDGES_S: Final = SHORTEST_NS / NS_PER_S * 2 ** (np.arange(LIFETIMES) / 2)

_PER_SLICE: Final = ("born", "alive", "alive_bytes", "floor_bytes")
_TABLES: Final = (*_PER_SLICE, "lifetimes")
_SEARCHED: Final = ("unreachable", "unreachable_bytes", "asked")


@dataclass(frozen=True, slots=True)
class Population:
    """Figures of some sites (stacks, or groups of stacks) at one time: a row each.

    Slice ``k`` lasts from ``edges_s[k]`` to ``edges_s[k + 1]``, seconds since the start;
    the first one begins at 0, the last one ends now.
    """

    edges_s: F64
    born: F64  # Blocks allocated in each slice
    alive: F64  # Blocks of each slice that are alive
    alive_bytes: F64  # Bytes of the blocks in `alive`
    floor_bytes: F64  # The smallest outstanding number of bytes during each slice
    lifetimes: F64  # Deaths by lifetime: a column per class
    load: F64  # Blocks born in the whole process, per slice
    unmatched: F64  # Frees of blocks that were never seen to be born: of all stacks, per slice
    unreachable: F64  # Blocks without any pointer to them, per slice (`heap.unreachable`)
    unreachable_bytes: F64  # Bytes of the blocks in `unreachable`
    asked: F64  # Blocks that the last pointer search covered: a number per site

    @property
    def now_s(self) -> float:
        """Seconds from the start of tracing to these figures."""
        return float(self.edges_s[-1])

    def select(self, rows: Stacks) -> Population:
        return self._with(lambda column: column[rows])

    def sums(self, rows: Stacks, starts: Stacks) -> Population:
        """Adds sites up: stretch n of ``rows`` begins at ``starts[n]``.

        The sum of floors is a lower bound of the sum's floor.
        """
        return self._with(lambda column: np.add.reduceat(column[rows], starts, axis=0))

    def _with(self, change: Callable[[F64], F64]) -> Population:
        return replace(self, **{n: change(getattr(self, n)) for n in (*_TABLES, *_SEARCHED)})


@dataclass(frozen=True, slots=True)
class Census:
    """The figures of all stacks at one time: copied at once, judged part by part.

    Fields are those of ``Population``, but with a row per slice (or class of lifetimes) and a
    column per stack, in whole numbers.
    """

    edges_s: F64
    born: I64
    alive: I64
    alive_bytes: I64
    floor_bytes: I64
    lifetimes: I64
    load: F64
    unmatched: F64
    unreachable: UnreachableTable = NONE_UNREACHABLE

    @property
    def now_s(self) -> float:
        return float(self.edges_s[-1])

    @property
    def stacks(self) -> int:
        return len(self.born[0])

    def survivors_by_age(self, stacks: Stacks) -> Population:
        tables = (getattr(self, name)[:, stacks].T.astype(np.float64) for name in _TABLES)
        return self._population(tables, self.unreachable.lost_blocks_of(stacks, len(self.load)))

    def _population(self, tables: Iterable[F64], unreachable: tuple[F64, F64, F64]) -> Population:
        return Population(
            **dict(zip(_TABLES, tables, strict=True)),
            **dict(zip(_SEARCHED, unreachable, strict=True)),
            edges_s=self.edges_s,
            load=self.load,
            unmatched=self.unmatched,
        )

    def totals_of_groups(
        self, order: Stacks, starts: Stacks, ends: Stacks
    ) -> Generator[None, None, Population]:
        """Adds stacks up into sites: site n is the stacks ``order[starts[n]:ends[n]]``.

        Yields after each table, so that other work can run. Stretches may overlap.
        """
        summed = []
        for name in _TABLES:
            table = getattr(self, name)
            until = np.zeros((len(table), len(order) + 1), np.int64)
            np.cumsum(table[:, order], axis=1, out=until[:, 1:])
            summed.append((until[:, ends] - until[:, starts]).T.astype(np.float64))
            yield None
        return self._population(summed, self.unreachable.sums(order, starts, ends, len(self.load)))


class Cohorts:
    """Births and survivors of all stacks of one address space. Not thread safe."""

    def __init__(self) -> None:
        self.start_ns: int | None = None  # CLOCK_MONOTONIC: by default the first event's time
        self._starts = np.empty(0, np.int64)
        self._row_of = np.empty(0, np.int64)  # Of each slice, oldest first: they never move
        self.born = CounterRows(SLICES)
        self.alive = CounterRows(SLICES)
        self.alive_bytes = CounterRows(SLICES)
        self.floor_bytes = CounterRows(SLICES)
        self.lifetimes = CounterRows(LIFETIMES)
        self._load = np.zeros(SLICES, np.int64)
        self._unmatched = np.zeros(SLICES, np.int64)
        self.version = 0  # Changes whenever slices or rows change
        # (stack, bytes) of each block that is being reallocated: it is in no total.
        self.unfinished: Callable[[], list[tuple[int, int]]] = list

    def begin(self, start_ns: int) -> None:
        """Sets when tracing began, CLOCK_MONOTONIC. Call it before the first event, if at all."""
        self.start_ns = start_ns
        self._starts = np.array([start_ns], np.int64)
        self._row_of = np.zeros(1, np.int64)
        self.version += 1

    def fork(self) -> Cohorts:
        child = Cohorts()
        child.start_ns = self.start_ns
        child._starts, child._row_of = self._starts, self._row_of
        child._load, child._unmatched = self._load.copy(), self._unmatched.copy()
        for name in _TABLES:
            setattr(child, name, getattr(self, name).fork())
        self.version += 1
        child.version = self.version
        return child

    def grow(self, stacks: int) -> None:
        if stacks > self.born.columns:
            columns = max(stacks, 2 * self.born.columns)
            for name in _TABLES:
                getattr(self, name).columns = columns

    def advance(self, now_ns: int, totals: Totals) -> None:
        """Opens the slices up to ``now_ns``. ``totals``: the current totals of each stack."""
        if self.start_ns is None:
            self.begin(now_ns)
        newest_ns = int(self._starts[-1])
        missing = (now_ns - newest_ns) // SLICE_NS
        if missing > _PAUSE_SLICES:
            # One slice for the last second before the pause, one for all of the pause.
            self._open(newest_ns + SLICE_NS, totals.live_bytes)
            self._open(newest_ns + missing * SLICE_NS, totals.live_bytes)
            return
        for number in range(missing):
            self._open(newest_ns + (number + 1) * SLICE_NS, totals.live_bytes)

    def _open(self, start_ns: int, live_bytes: I64) -> None:
        row = len(self._starts) if len(self._starts) < SLICES else self._merge_two(start_ns)
        if moving := self.unfinished():
            live_bytes = live_bytes.copy()
            np.add.at(live_bytes, *np.array(moving).T)
        self.floor_bytes.set(row, live_bytes)
        self._starts = np.append(self._starts, start_ns)
        self._row_of = np.append(self._row_of, row)
        self.version += 1

    def _merge_two(self, now_ns: int) -> int:
        ends = np.append(self._starts[1:], now_ns)
        pair = int(np.argmin((ends[1:] - self._starts[:-1]) / (now_ns - ends[1:] + _AGE_OFFSET_NS)))
        kept, freed = self._row_of[pair : pair + 2].tolist()
        for table in (self.born, self.alive, self.alive_bytes):
            table.fold(kept, freed)
        self.floor_bytes.fold_lowest(kept, freed)
        for counts in (self._load, self._unmatched):
            counts[kept] += counts[freed]
            counts[freed] = 0
        self._starts = np.delete(self._starts, pair + 1)
        self._row_of = np.delete(self._row_of, pair + 1)
        return int(freed)

    def slices(self) -> tuple[I64, I64, I64, I64]:
        return self._starts, self._row_of, self._load, self._unmatched

    def row(self, at: int) -> I64:
        """Returns a writable row, by its number across all tables."""
        table, row = divmod(at, SLICES)
        rows: CounterRows = getattr(self, _TABLES[table])
        return rows.own(row)

    def census(
        self, now_ns: int, stacks: int, unreachable: UnreachableBlocks | None = None
    ) -> Census:
        """Copies the figures of the first ``stacks`` stacks. Call it only after the first event."""
        assert self.start_ns is not None
        # A slice that has hardly begun still has a length.
        edges_ns = np.append(self._starts, max(now_ns, int(self._starts[-1]) + SLICE_NS // 1024))
        rows = self._row_of
        return Census(
            **{name: getattr(self, name).gather(rows, stacks) for name in _PER_SLICE},
            edges_s=(edges_ns - self.start_ns) / NS_PER_S,
            lifetimes=self.lifetimes.gather(np.arange(LIFETIMES), stacks),
            load=self._load[rows].astype(np.float64),
            unmatched=self._unmatched[rows].astype(np.float64),
            unreachable=NONE_UNREACHABLE if unreachable is None else unreachable.table(edges_ns),
        )
