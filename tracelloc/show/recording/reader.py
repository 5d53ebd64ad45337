"""Reads a recording: the trace at any of its snapshots, with names."""

import bisect
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

from tracelloc.errors import MalformedError, TracellocError
from tracelloc.model.stacks import CallStacks
from tracelloc.show.recording import container, momentcodec
from tracelloc.show.recording.container import RecordedMoment, checked
from tracelloc.show.recording.parts import trace_of
from tracelloc.show.recording.recordednames import RecordedSymbols
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.system.bounded import UnpackBudget

_MOST_STACKS: Final = 1 << 24
_MOST_FRAMES: Final = 512
_MOST_MOMENTS: Final = 1 << 19  # Limit of snapshots; folding leaves tens of thousands per year
_MOST_ABOUT: Final = 1 << 20  # Limit of the characters of a description
_TRACES: Final = 4  # Number of cached traces, for users who go back and forth


class RecordedTrace:
    """An open recording. For one thread at a time; errors are one line each."""

    def __init__(self, path: Path) -> None:
        """Opens a recording. Raises TracellocError if it can't be read."""
        self.path = path
        self.moments: list[RecordedMoment] = []  # Snapshots, oldest first; at least one
        # Description of the trace: `pid`, `command`, `host`, `version`
        self.about: dict[str, str] = {}
        self._symbols: dict[int, RecordedSymbols] = {}
        self._books: dict[int, _RecordedBook] = {}
        self._samples: dict[tuple[momentcodec.ProcessKey, int], momentcodec.I64] = {}
        self._seen = {"stacks": -1, "names": -1}  # Numbers of the newest rows that were read
        # Cached moments by number, on the way to the last requested one
        self._known: dict[int, momentcodec.MomentParts] = {}
        self._traces: dict[int, TraceSnapshot] = {}  # The last requested traces, by number
        self._budget = UnpackBudget()
        self._data_version = -1
        self.is_growing: bool  # Whether the recording may still grow
        with container.rights_to_read(path):
            self._connection, self.is_growing = container.open_recorded(path)
        try:
            self.reload()
            if not self.moments:
                raise TracellocError(f"{path} has no snapshot yet")
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def reload(self) -> None:
        """Reads snapshots written since the last call, if the recording is still growing."""
        with self.reading():
            self._reload()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yields the database; all reads within the context see the same state."""
        with container.failing(self.path, "read"), container.rights_to_read(self.path):
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.rollback()

    def _reload(self) -> None:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return
        self._read_moments()
        self._read_about()
        for number, book, first, crc, data in self._new_rows("stacks"):
            self._seen["stacks"] = number
            known = self._books.setdefault(book, _RecordedBook())
            known.add(first, checked(data, crc, book, first), self._budget)
        for number, process, programs, crc, data in self._new_rows("names"):
            self._seen["names"] = number
            content = checked(data, crc, process, programs)
            self.symbols_of(process).add((process, programs), content, self._budget)
        self._data_version = version

    def _read_about(self) -> None:
        about, left = {}, _MOST_ABOUT
        for name, value in self._connection.execute("SELECT name, value FROM about"):
            left -= len(name) + len(value)
            if left < 0:
                raise MalformedError("its description is too long")
            about[name] = value
        self.about = about

    def _read_moments(self) -> None:
        """Reads the list of snapshots: only new ones, unless old ones were folded."""
        read = self._connection.execute
        last = self.moments[-1].number if self.moments else -1
        (old,) = read("SELECT COUNT(*) FROM moments WHERE number <= ?", (last,)).fetchone()
        if old != len(self.moments):
            self.moments, last = [], -1
        for row in read("SELECT * FROM moments WHERE number > ? ORDER BY number", (last,)):
            if not _is_moment(row) or len(self.moments) >= _MOST_MOMENTS:
                raise MalformedError("its list of snapshots is damaged")
            self.moments.append(RecordedMoment._make(row))

    def _new_rows(self, table: str) -> sqlite3.Cursor:
        return self._connection.execute(
            f"SELECT * FROM {table} WHERE number > ? ORDER BY number",  # noqa: S608
            (self._seen[table],),
        )

    def symbols_of(self, number: int) -> RecordedSymbols:
        """Returns the names of a process, at the last requested snapshot."""
        return self._symbols.setdefault(number, RecordedSymbols())

    def find(self, time_s: float) -> int:
        """Returns the last index not later than a time, in seconds since 1970, else the first."""
        return max(0, bisect.bisect_right(self.moments, time_s, key=attrgetter("time_s")) - 1)

    def find_uptime(self, uptime_s: float) -> int:
        """Returns the last index not later than a CLOCK_MONOTONIC time, else the first."""
        return max(0, bisect.bisect_right(self.moments, uptime_s, key=attrgetter("uptime_s")) - 1)

    def trace_at(self, index: int) -> TraceSnapshot:
        """Returns the trace at a snapshot. Raises TracellocError if that part is damaged."""
        with self.reading():
            return self._trace(self.moments[index])

    def trace_as_of(self, uptime_s: float) -> TraceSnapshot:
        """Returns the trace at a time, by what is written by now: snapshots may be folded."""
        with self.reading():
            self._reload()
            return self._trace(self.moments[self.find_uptime(uptime_s)])

    def _trace(self, moment: RecordedMoment) -> TraceSnapshot:
        trace = self._traces.get(moment.number)
        if trace is None:
            trace = trace_of(self._parts(moment), self._stacks, self._sample)
            last = list(self._traces.items())[1 - _TRACES :]
            self._traces = {**dict(last), moment.number: trace}
        for one in trace.processes:
            self.symbols_of(one.target.number).begin(one.target.exec_count)
        return trace

    def _parts(self, moment: RecordedMoment) -> momentcodec.MomentParts:
        first = bisect.bisect_left(self.moments, moment.whole, key=attrgetter("number"))
        rank = self.moments.index(moment, first) - first
        path = [self.moments[first + each] for each in momentcodec.MomentChain.path(rank)]
        kept = {e.number for e in [*path[: -(rank % momentcodec.ANCHORS) or None][-2:], moment]}
        parts, start = momentcodec.NOTHING, 0
        for at, one in enumerate(path):
            if one.number in self._known:
                parts, start = self._known[one.number], at + 1
        known = {number: each for number, each in self._known.items() if number in kept}
        for one in path[start:]:
            parts = momentcodec.decode(self._data(one), parts)
            if one.number in kept:
                known[one.number] = parts
        self._known = known
        return parts

    def _data(self, moment: RecordedMoment) -> bytes:
        row = self._connection.execute(
            "SELECT data, crc FROM contents WHERE number = ?", (moment.number,)
        ).fetchone()
        if row is None:
            raise MalformedError("a snapshot is missing")
        return checked(*row, moment.number, moment.whole)

    def _stacks(self, book: int) -> CallStacks:
        if book not in self._books:
            raise MalformedError("stacks are missing")
        return self._books[book].stacks()

    def _sample(self, key: momentcodec.ProcessKey, time_ns: int) -> momentcodec.I64:
        held = self._samples.get((key, time_ns))
        if held is None:
            row = self._connection.execute(
                "SELECT data, crc FROM samples WHERE process = ? AND programs = ? AND time_ns = ?",
                (*key, time_ns),
            ).fetchone()
            if row is None:
                raise MalformedError("a sample of the history is missing")
            content = checked(*row, *key, time_ns)
            (held,) = momentcodec.arrays_unpacked(content, np.int64, budget=self._budget)
            self._samples[key, time_ns] = held
        return held


def _is_moment(row: tuple[object, ...]) -> bool:
    """Whether a row's values have the declared types, which SQLite does not enforce."""
    number, time_s, uptime_s, step_s, whole = row
    numbers = isinstance(number, int) and isinstance(step_s, int) and isinstance(whole, int)
    return numbers and isinstance(time_s, float) and isinstance(uptime_s, float)


class _RecordedBook:
    def __init__(self) -> None:
        self._depths = np.zeros(0, np.int64)
        self._starts = np.zeros(0, np.int64)
        self._flags = np.zeros(0, np.uint16)
        self._frames = np.zeros(0, np.uint64)
        self._stacks = CallStacks()
        self._is_stale = True

    def add(self, first: int, data: bytes, budget: UnpackBudget) -> None:
        """Adds stacks from index ``first`` on, or frames of a known one. Raises MalformedError."""
        depths, flags, frames = momentcodec.arrays_unpacked(
            data, np.int64, np.uint16, np.uint64, budget=budget
        )
        # Where they start is kept, too; four columns are there twice while they are put together.
        budget.spend(8 * len(depths))
        budget.check(4 * 8 * len(depths))
        end = first + len(depths)
        lengths = np.maximum(depths, 0)
        if not 0 <= first <= len(self._depths) or end > _MOST_STACKS or len(flags) != len(depths):
            raise MalformedError("stacks are damaged")
        if (len(depths) and int(depths.max()) > _MOST_FRAMES) or int(lengths.sum()) != len(frames):
            raise MalformedError("frames are damaged")
        starts = np.cumsum(lengths) - lengths + len(self._frames)
        starts[depths < 0] = -1
        self._depths = _put(self._depths, first, lengths)
        self._starts = _put(self._starts, first, starts)
        self._flags = _put(self._flags, first, flags)
        self._frames = np.append(self._frames, frames)
        self._is_stale = True

    def stacks(self) -> CallStacks:
        """Returns all stacks, including those first seen after the shown snapshot."""
        if self._is_stale:
            self._stacks.replace(self._starts, self._depths, self._flags, self._frames)
            self._is_stale = False
        return self._stacks


def _put(column: np.ndarray, first: int, values: np.ndarray) -> np.ndarray:
    whole = np.zeros(max(len(column), first + len(values)), column.dtype)
    whole[: len(column)] = column
    whole[first : first + len(values)] = values
    return whole
