"""Detects wrappers of malloc that no rule matches, by how they are used.

If many functions call the direct caller of malloc for blocks of many sizes, it is the program's
own malloc, and users want to read its callers instead. A function that allocates one kind of
object has many callers as well, but its blocks are of one size.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tracelloc.dataclass import dataclass, field
from tracelloc.show.filters import NamedStack

_LEAST_CALLERS: Final = 8
_LEAST_SIZES: Final = 6  # Least number of distinct mean block sizes, by caller
_LEAST_SPREAD: Final = 8  # Least ratio of the largest to the smallest mean size
# Largest share of one caller in the bytes; above it, the function may belong to that caller.
_MOST_SHARE: Final = 0.6


@dataclass(slots=True)
class _Use:
    # Bytes by caller.
    size_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    # Blocks by caller.
    count: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def is_wrapper(self) -> bool:
        if len(self.size_bytes) < _LEAST_CALLERS:
            return False
        means = {self.size_bytes[name] // max(self.count[name], 1) for name in self.size_bytes}
        least, most = max(1, min(means)), max(means)
        share = max(self.size_bytes.values()) / max(1, sum(self.size_bytes.values()))
        return len(means) >= _LEAST_SIZES and most >= _LEAST_SPREAD * least and share <= _MOST_SHARE


def measured_wrappers(stacks: Iterable[tuple[NamedStack, int, int]]) -> frozenset[str]:
    """Returns functions that wrap malloc; ``stacks``: with their allocated bytes and blocks."""
    uses: defaultdict[str, _Use] = defaultdict(_Use)
    for stack, size_bytes, count in stacks:
        found = _innermost(stack)
        if found is not None:
            name, caller = found
            uses[name].size_bytes[caller] += size_bytes
            uses[name].count[caller] += count
    return frozenset(name for name, use in uses.items() if use.is_wrapper)


def _innermost(stack: NamedStack) -> tuple[str, str] | None:
    """Returns (innermost shown function, its caller); None if either is not a plain frame."""
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
