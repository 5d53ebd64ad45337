"""What sections of reports have in common: an entry is a stack with a line of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tracelloc.heap.totals import I64
from tracelloc.units import format_size, plural

StackLines = Callable[[int], Iterator[str]]
"""The lines of a stack by its index."""
StackFrames = Callable[[int], list[dict[str, Any]]]
"""The same for JSON."""


class Entry(Protocol):
    """Of a list of stacks."""

    @property
    def index(self) -> int:
        """Of the stack."""


E = TypeVar("E", bound=Entry)


def entry_lines(entries: Sequence[E], line: Callable[[E], str], stack: StackLines) -> Iterator[str]:
    """Numbered entries, each with its stack."""
    for number, entry in enumerate(entries):
        yield f"  {number:>4}: {line(entry)}"
        yield from stack(entry.index)


def largest(column: I64, top: int) -> tuple[int, list[int]]:
    """How many stacks have any, and those that have most, the first of equal ones first."""
    having = np.flatnonzero(column)
    return len(having), having[np.lexsort((having, -column[having]))][:top].tolist()


def amount(size_bytes: int, count: int, about: str, one: str = "allocation") -> str:
    """``1.5 MiB in 20 allocations``."""
    return f"{about}{format_size(size_bytes)} in {about}{plural(count, one)}"
