"""What sections of reports have in common: an entry is a stack with a line of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.units import format_size, plural

StackLines = Callable[[int], Iterator[str]]
"""The lines of a stack by its index."""
StackFrames = Callable[[int], list[dict[str, Any]]]
"""The same for JSON."""


class Entry(Protocol):
    """Of a list of stacks."""

    @property
    def stack(self) -> int:
        """Its index."""

    def line(self, about: str) -> str:
        """Its figures."""


def entry_lines(entries: Sequence[Entry], about: str, stack: StackLines) -> Iterator[str]:
    """Numbered entries, each with its stack."""
    for number, entry in enumerate(entries):
        yield f"  {number:>4}: {entry.line(about)}"
        yield from stack(entry.stack)


def about_of(snapshot: Snapshot) -> str:
    """``~`` where figures are estimates."""
    return "" if snapshot.sample_bytes is None else "~"


def amount(size_bytes: int, count: int, about: str, one: str = "allocation") -> str:
    """``1.5 MiB in 20 allocations``."""
    return f"{about}{format_size(size_bytes)} in {about}{plural(count, one)}"
