"""Wrappers of malloc that no rule knows, found by how they are used.

A function right above malloc that many functions call for blocks of unlike sizes is how a program
spells malloc; what its callers do is what users want to read. A function that allocates one kind
of object has callers as well, but its blocks are of one size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tracelloc.show.filters import NamedStack

_LEAST_CALLERS: Final = 8
_LEAST_SIZES: Final = 6
"""Distinct mean sizes of blocks, by caller."""
_LEAST_SPREAD: Final = 8
"""Times by which the largest mean size exceeds the smallest."""
_MOST_SHARE: Final = 0.6
"""Share of one caller in the bytes: above it, the function may be that caller's own."""


@dataclass(slots=True)
class _Use:
    """How a function is used."""

    size_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes by caller."""
    count: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Blocks by caller."""

    @property
    def is_wrapper(self) -> bool:
        if len(self.size_bytes) < _LEAST_CALLERS:
            return False
        means = {self.size_bytes[name] // max(self.count[name], 1) for name in self.size_bytes}
        least, most = max(1, min(means)), max(means)
        share = max(self.size_bytes.values()) / max(1, sum(self.size_bytes.values()))
        return len(means) >= _LEAST_SIZES and most >= _LEAST_SPREAD * least and share <= _MOST_SHARE


def measured_wrappers(stacks: Iterable[tuple[NamedStack, int, int]]) -> frozenset[str]:
    """Functions that wrap malloc, of stacks with their allocated bytes and blocks."""
    uses: defaultdict[str, _Use] = defaultdict(_Use)
    for stack, size_bytes, count in stacks:
        found = _innermost(stack)
        if found is not None:
            name, caller = found
            uses[name].size_bytes[caller] += size_bytes
            uses[name].count[caller] += count
    return frozenset(name for name, use in uses.items() if use.is_wrapper)


def _innermost(stack: NamedStack) -> tuple[str, str] | None:
    """(the innermost function that is shown, its caller); None where that is no plain frame."""
    name: str | None = None
    for part in stack.parts():
        if part.frame is None:
            continue
        symbol = part.frame.symbol
        if part.label is not None or symbol is None:
            return None
        if name is None:
            name = symbol
        elif symbol != name:
            return name, symbol
    return None
