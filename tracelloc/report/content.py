"""A section of one report: its lines and its JSON fields, from one computation.

A section is a function from a ``Request`` to a ``SectionContent``; ``sections`` lists them. It
runs before any stack has a name; then the stacks of all sections are named together, and
the contents are written as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracelloc.heap.totals import I64
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import about_of, format_percent, format_size, plural
from tracelloc.views.facts import stack_facts, stack_lines
from tracelloc.views.naming import Namer


@dataclass(frozen=True, slots=True)
class ReportStyle:
    """Options of reports: entries per section, and which sections."""

    top: int
    """Entries per section."""
    min_age_ns: int | None = None
    """Adds a section of blocks at least so old."""
    show: Set[str] = frozenset()
    """Sections beside the usual ones."""
    has_many: bool = False
    """Several processes may be traced: each has a heading, and all of them a total."""


@dataclass(frozen=True, slots=True)
class Request:
    """The snapshot, names and options that a report is made from."""

    snapshot: Snapshot
    namer: Namer
    style: ReportStyle
    mark: Snapshot | None = None
    """Snapshot of the mark that growth is counted from."""

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


@dataclass(frozen=True, slots=True)
class SectionContent:
    """Lines and fields of a section, and a list of entries that ends both."""

    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    """The field of the entries; None: there is none."""
    listed: Sequence[Entry] = ()

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
            yield from stack_lines(given.namer.stack(given.snapshot, entry.stack), entry.stack)

    def json(self, given: Request) -> dict[str, Any]:
        """Returns the section as JSON fields."""
        if self.key is None:
            return self.facts
        entries = [
            {
                **entry.facts,
                "stack_id": entry.stack,
                "stack": stack_facts(given.namer.stack(given.snapshot, entry.stack)),
            }
            for entry in self.entries(given)
        ]
        return {**self.facts, self.key: entries}


def share_of_allocations(stat: StackStat, count: int) -> str:
    """Formats a share of a stack's allocations: ``1.2 % of its allocations``."""
    return f"{format_percent(count / max(stat.allocated_count, 1))} of its allocations"


def largest(column: I64, top: int) -> tuple[int, list[int]]:
    """Number of stacks with a nonzero figure, and the indices of the largest."""
    having = np.flatnonzero(column)
    return len(having), having[np.lexsort((having, -column[having]))][:top].tolist()
