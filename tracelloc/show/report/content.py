"""A section of one report: its lines and its JSON fields, from one computation.

A section is a function from a ``Request`` to a ``SectionContent``; ``sections`` lists them. It
runs before any stack has a name; then the stacks of all sections are named together, and
the contents are written as text or as JSON.

A trace logged for weeks would write the same call stacks every minute, so later reports only have
what has changed (``EarlierReports``). Because logs are rotated, every few hours a report is
complete again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass, field, replace
from tracelloc.model.figures import I64
from tracelloc.model.verdicts import Verdict
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.facts import stack_facts, stack_lines
from tracelloc.show.presentation.naming import Namer, stack_title
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import about_of, format_percent, format_size, plural, printable

# From the directory that is `/` for a process, and paths in it, to an instruction by path.
HintsOf = Callable[[Path, Iterable[str]], Mapping[str, str]]


_RATE_MOVES: Final = 1.25
# Factors by which a suspect's rate or live bytes differ before they are reported again.
_SIZE_MOVES: Final = 2.0
FULL_AGAIN_S: Final = 6 * 3600.0  # Time between full reports


class Repeat(Enum):
    """How much of a suspect a report repeats."""

    NOTHING = 0
    LINE = 1
    ALL = 2  # With its evidence, and the frames of its stack


@dataclass(frozen=True, slots=True)
class ReportedSuspect:
    """A suspect as the last report with it had it."""

    verdict: Verdict
    rank: int  # Position in the list of suspects, or the best one of several reports
    culprit: str  # The function, or the holder of a type
    rate_bytes_per_min: float
    size_bytes: int
    stack: int | None = None  # The stack with the largest share; None for a type of objects

    def repeat(self, now: ReportedSuspect) -> Repeat:
        """Returns how much a report has to repeat, given the suspect's current state."""
        is_same = (self.verdict, self.culprit) == (now.verdict, now.culprit)
        if not is_same or now.rank < self.rank:
            return Repeat.ALL
        has_moved = _moves(self.rate_bytes_per_min, now.rate_bytes_per_min, _RATE_MOVES)
        has_moved |= _moves(self.size_bytes, now.size_bytes, _SIZE_MOVES)
        return Repeat.LINE if has_moved else Repeat.NOTHING


def _moves(before: float, now: float, factor: float) -> bool:
    low, high = sorted((before, now))
    return high >= factor * max(low, 1)


class EarlierProcessReports:
    """What earlier reports contained on one process."""

    def __init__(self) -> None:
        self.is_full = True  # Whether this report is full
        self.is_first = False  # Whether the trace had no report before
        self._is_new = True
        self._states: dict[Hashable, Hashable] = {}
        self._stacks: dict[int, NamedStack] = {}
        self._members: dict[Hashable, set[Hashable]] = {}
        self._suspects: dict[Hashable, ReportedSuspect] = {}

    def begin(self, *, is_full: bool, is_first: bool) -> None:
        """Begins a report; the first one of a process is always full."""
        self.is_full, self.is_first = is_full or self._is_new, is_first
        self._is_new = False
        if self.is_full:
            self._stacks.clear()
            self._members.clear()

    def has_changed(self, topic: Hashable, state: Hashable) -> bool:
        """Whether a topic's state has to be reported, as it differs from the last report's."""
        is_known = topic in self._states and self._states[topic] == state
        self._states[topic] = state
        return self.is_full or not is_known

    def has_new(self, topic: Hashable, members: Set[Hashable]) -> bool:
        """Whether a list has members that were not reported since the last full report."""
        known = self._members.setdefault(topic, set())
        is_new = not members <= known
        known |= members
        return self.is_full or is_new

    def repeat(self, key: Hashable, suspect: ReportedSuspect) -> Repeat:
        """Returns how much of a suspect this report has. ``key`` identifies the suspect."""
        before = self._suspects.get(key)
        repeat = Repeat.ALL if before is None or self.is_full else before.repeat(suspect)
        if before is None or repeat is not Repeat.NOTHING:
            self._suspects[key] = suspect
            if before is not None and before.verdict is suspect.verdict:
                best = min(before.rank, suspect.rank)
                self._suspects[key] = replace(suspect, rank=best)
        return repeat

    def cleared(self, current: Set[Hashable]) -> dict[Hashable, ReportedSuspect]:
        """Returns former suspects that are not in ``current``, once each, by key."""
        gone = {key: each for key, each in self._suspects.items() if key not in current}
        for key in gone:
            del self._suspects[key]
        return gone

    def has_frames(self, index: int, stack: NamedStack) -> bool:
        """Whether a stack's frames were reported; False if they are new or got names."""
        known = self._stacks.get(index)
        if known is not None and (known is stack or known == stack):
            return True
        self._stacks[index] = stack
        return False


class EarlierReports:
    """What earlier reports of a trace contained, by process. For one thread."""

    def __init__(
        self, *, is_every_full: bool = False, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``is_every_full``: every report is full, as ``--json-full`` requests."""
        self._is_every_full = is_every_full
        self._now_s = now_s
        self._full_s: float | None = None
        self._is_full = True
        self._processes: dict[int, EarlierProcessReports] = {}

    def begin(self, *, is_last: bool = False) -> None:
        """Begins a report. The last one is full, for readers of the end of a file."""
        now_s = self._now_s()
        is_due = self._full_s is None or now_s - self._full_s >= FULL_AGAIN_S
        self._is_full = self._is_every_full or is_last or is_due
        if self._is_full:
            self._full_s = now_s

    def begin_process(self, number: int) -> EarlierProcessReports:
        """Begins the current report on a process; returns its ``EarlierProcessReports``."""
        is_first = not self._processes
        earlier = self._processes.setdefault(number, EarlierProcessReports())
        earlier.begin(is_full=self._is_full, is_first=is_first)
        return earlier


@dataclass(frozen=True, slots=True)
class ReportStyle:
    """Options of reports: entries per section, and which sections."""

    top: int  # Entries per section
    min_age_ns: int | None = None  # Least age of blocks in an added section; None: no section
    show: Set[str] = frozenset()  # Additional sections
    # Whether several processes may be traced: each has a heading, and there is a total.
    has_many: bool = False
    # Finds how to get debug information; None if the files of the processes can't be read.
    hints_of: HintsOf | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The snapshot, names and options that a report is made from."""

    snapshot: Snapshot
    namer: Namer
    style: ReportStyle
    mark: Snapshot | None = None  # Snapshot of the mark that growth is counted from
    # What earlier reports contained on the process.
    earlier: EarlierProcessReports = field(default_factory=EarlierProcessReports)

    @property
    def about(self) -> str:
        """The prefix ``~`` of estimates, or nothing."""
        return about_of(self.snapshot.sample_bytes)

    def amount(self, size_bytes: int, count: int, one: str = "allocation") -> str:
        """Formats an amount: ``1.5 MiB in 20 allocations``."""
        return f"{self.about}{format_size(size_bytes)} in {self.about}{plural(count, one)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a section: a call stack with its figures."""

    stack: int  # Index of the stack
    text: str  # The line of figures
    facts: dict[str, Any]  # JSON fields, without the stack
    label: str | None = None  # The words before the text; None: the entry's number
    more: Sequence[str] = ()  # Further lines, before those of the stack
    has_frames: bool = True  # Whether text lists the frames
    # Completes the entry once stacks have names.
    complete: Callable[[Request, Entry], Entry] = lambda _given, entry: entry

    def lines(self, given: Request, label: str) -> Iterator[str]:
        """Yields the entry's text and frames, or a short title for frames reported before."""
        stack = given.namer.stack(given.snapshot, self.stack)
        is_short = self.has_frames and given.earlier.has_frames(self.stack, stack)
        title = printable(stack_title(stack, self.stack, with_line=True)) if is_short else ""
        yield f"{label}: {self.text}{title and f', in {title}'}"
        yield from self.more
        if self.has_frames and not is_short:
            yield from stack_lines(stack, self.stack)

    def json(self, given: Request) -> dict[str, Any]:
        """Returns the entry as JSON fields, without frames that an earlier report had."""
        stack = given.namer.stack(given.snapshot, self.stack)
        is_known = given.earlier.has_frames(self.stack, stack) and not given.earlier.is_full
        frames = {} if is_known else {"stack": stack_facts(stack)}
        return {**self.facts, "stack_id": self.stack, **frames}


@dataclass(frozen=True, slots=True)
class SectionContent:
    """The lines and JSON fields of a section, and a list of entries for both."""

    lines: Sequence[str]  # Lines of text before the entries
    facts: dict[str, Any] = field(default_factory=dict)  # JSON fields
    key: str | None = None  # The JSON field of the entries; None if there is none
    listed: Sequence[Entry] = ()  # The entries, in order
    # The section is repeated when this value changes; None: when its lines or entries do.
    repeat_when: Hashable = None
    also: Set[int] = frozenset()  # Further stacks that need names
    # If not None, the section is repeated when this set has members that it never had before.
    novelties: Set[Hashable] | None = None

    # Returns further lines that earlier reports did not have, once stacks have names.
    more: Callable[[Request], Iterable[str]] = lambda _given: ()
    # Returns further JSON fields, once stacks have names.
    late_facts: Callable[[Request], Mapping[str, Any]] = lambda _given: {}

    @property
    def stacks(self) -> Set[int]:
        """The stacks that need names, by index."""
        return {entry.stack for entry in self.listed} | self.also

    def text(self, section: Hashable, given: Request) -> Iterator[str]:
        """Yields the new lines of a section as text. ``section``: identifies the section."""
        if self._has_changed(section, given.earlier):
            yield from self.lines
            for number, entry in enumerate(self.listed):
                label = f"  {number:>4}" if entry.label is None else entry.label
                yield from entry.complete(given, entry).lines(given, label)
        yield from self.more(given)

    def _has_changed(self, section: Hashable, earlier: EarlierProcessReports) -> bool:
        if self.novelties is not None:
            return earlier.has_new(section, self.novelties)
        if self.repeat_when is not None:
            return earlier.has_changed(section, self.repeat_when)
        entries = tuple((entry.stack, entry.text) for entry in self.listed)
        return earlier.has_changed(section, (tuple(self.lines), entries))

    def json(self, given: Request) -> dict[str, Any]:
        entries = [entry.complete(given, entry).json(given) for entry in self.listed]
        listed = {} if self.key is None else {self.key: entries}
        return {**self.facts, **listed, **self.late_facts(given)}


def share_of_allocations(stat: StackStat, count: int) -> str:
    """Formats a share of a stack's allocations: ``1.2 % of its allocations``."""
    return f"{format_percent(count / max(stat.allocated_count, 1))} of its allocations"


def largest(column: I64, top: int) -> tuple[int, list[int]]:
    """Returns (number of stacks with a nonzero figure, the indices of the largest)."""
    having = np.flatnonzero(column)
    return len(having), having[np.lexsort((having, -column[having]))][:top].tolist()
