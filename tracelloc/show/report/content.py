"""A section of one report: its lines and its JSON fields, from one computation.

A section is a function from a ``Request`` to a ``SectionContent``; ``sections`` lists them. It
runs before any stack has a name; then the stacks of all sections are named together, and
the contents are written as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tracelloc.model.figures import I64
from tracelloc.show.presentation.facts import stack_facts, stack_lines
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.titles import stack_title
from tracelloc.show.report.earlier import EarlierProcessReports
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import about_of, format_percent, format_size, plural, printable

HintsOf = Callable[[Path, Iterable[str]], Mapping[str, str]]
"""From the directory that is ``/`` for a process, and paths in it, to an instruction by path."""


@dataclass(frozen=True, slots=True)
class ReportStyle:
    """Options of reports: entries per section, and which sections."""

    top: int
    """Entries per section."""
    min_age_ns: int | None = None
    """Adds a section of blocks at least so old."""
    show: Set[str] = frozenset()
    """Additional sections."""
    has_many: bool = False
    """Several processes may be traced: each has a heading, and all of them a total."""
    long_names: bool = True
    """Text has functions with template arguments and parameters."""
    hints_of: HintsOf | None = None
    """Finds how to get debug information; None if the files of the processes can't be read."""


@dataclass(frozen=True, slots=True)
class Request:
    """The snapshot, names and options that a report is made from."""

    snapshot: Snapshot
    namer: Namer
    style: ReportStyle
    mark: Snapshot | None = None
    """Snapshot of the mark that growth is counted from."""
    earlier: EarlierProcessReports = field(default_factory=EarlierProcessReports)
    """What earlier reports contained on the process."""

    @property
    def about(self) -> str:
        """The mark of estimates, ``~``, or nothing."""
        return about_of(self.snapshot.sample_bytes)

    def amount(self, size_bytes: int, count: int, one: str = "allocation") -> str:
        """Formats an amount: ``1.5 MiB in 20 allocations``."""
        return f"{self.about}{format_size(size_bytes)} in {self.about}{plural(count, one)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A call stack with its figures."""

    stack: int
    """Index of the stack."""
    text: str
    facts: dict[str, Any]
    """JSON fields, without the stack."""
    label: str | None = None
    """Stands before the text; None: the entry's number."""
    more: Sequence[str] = ()
    """Further lines, before those of the stack."""
    has_frames: bool = True
    """Whether text lists the frames."""
    state: Hashable = None
    """The entry is repeated when this state changes; None: when its text does."""

    def stack_lines(self, given: Request) -> Iterator[str]:
        """Yields the lines of the stack, or one that refers to an earlier report."""
        stack, earlier = given.namer.stack(given.snapshot, self.stack), given.earlier
        at = earlier.frames_at(self.stack, stack)
        if at is None or earlier.is_full:
            yield from stack_lines(stack, self.stack, long_names=given.style.long_names)
        else:
            title = printable(stack_title(stack, self.stack, with_line=True))
            yield f"        {title} (frames at {at})"


@dataclass(frozen=True, slots=True)
class SectionContent:
    """Lines and fields of a section, and a list of entries that ends both."""

    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    """The JSON field of the entries; None if there is none."""
    listed: Sequence[Entry] = ()
    said_again_if: Hashable = None
    """The section is repeated when this changes; None: when its lines or entries do."""
    has_changing_title: bool = False
    """Whether lines have totals that always change, so that only entries count as changes."""

    @property
    def state(self) -> Hashable:
        """State of the section, which is reported if this differs from before."""
        if self.said_again_if is not None:
            return self.said_again_if
        entries = tuple(
            (entry.stack, entry.text) if entry.state is None else entry.state
            for entry in self.listed
        )
        return entries if self.has_changing_title else (tuple(self.lines), entries)

    @property
    def stacks(self) -> Set[int]:
        """The stacks that need names, by index."""
        return {entry.stack for entry in self.listed}

    def entries(self, given: Request) -> Sequence[Entry]:  # noqa: ARG002 - of those with names
        """Entries of the section, once stacks have names."""
        return self.listed

    def text(self, given: Request) -> Iterator[str]:
        """Yields the section as lines of text."""
        yield from self.lines
        for number, entry in enumerate(self.entries(given)):
            yield f"{f'  {number:>4}' if entry.label is None else entry.label}: {entry.text}"
            yield from entry.more
            if entry.has_frames:
                yield from entry.stack_lines(given)

    def json(self, given: Request) -> dict[str, Any]:
        """Returns the section as JSON fields."""
        if self.key is None:
            return self.facts
        entries = [
            {**entry.facts, "stack_id": entry.stack, **_frames(entry, given)}
            for entry in self.entries(given)
        ]
        return {**self.facts, self.key: entries}


def _frames(entry: Entry, given: Request) -> dict[str, Any]:
    """Returns the field ``stack``; empty if an earlier report had these frames."""
    stack = given.namer.stack(given.snapshot, entry.stack)
    at = given.earlier.frames_at(entry.stack, stack)
    return {"stack": stack_facts(stack)} if at is None or given.earlier.is_full else {}


def share_of_allocations(stat: StackStat, count: int) -> str:
    """Formats a share of a stack's allocations: ``1.2 % of its allocations``."""
    return f"{format_percent(count / max(stat.allocated_count, 1))} of its allocations"


def largest(column: I64, top: int) -> tuple[int, list[int]]:
    """Number of stacks with a nonzero figure, and the indices of the largest."""
    having = np.flatnonzero(column)
    return len(having), having[np.lexsort((having, -column[having]))][:top].tolist()
