"""Blocks that were allocated before tracing began, as a walk of the heap found them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EarlierKind:
    """Earlier blocks of one class and size. Its live blocks are those of the stack."""

    stack: int
    """Index in ``CallStacks``: not a call stack, but what these blocks have in common."""
    class_name: str
    """C++ class of the blocks; empty if unknown."""
    least_bytes: int
    """Usable size of the smallest that belong here."""
    most_bytes: int
    """Usable size of the largest."""
    count: int
    """Blocks when tracing began."""
    size_bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, slots=True)
class EarlierBlocks:
    """All blocks from before tracing. Sizes are usable sizes: what was requested is not known."""

    kinds: tuple[EarlierKind, ...]
    """Kinds, the ones with the most bytes first."""
    coverage: float
    """The part of the heap that was seen, 0 to 1."""
    notes: tuple[str, ...] = ()
    """What is missing; may contain names from the target."""

    @property
    def count(self) -> int:
        """Blocks when tracing began."""
        return sum(kind.count for kind in self.kinds)

    @property
    def size_bytes(self) -> int:
        """Usable bytes when tracing began."""
        return sum(kind.size_bytes for kind in self.kinds)
