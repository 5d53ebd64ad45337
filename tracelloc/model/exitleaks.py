"""Blocks that a program has leaked when it ends: nothing points to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracelloc.model.heapusage import BlockSum


@dataclass(frozen=True, slots=True)
class LeakedStack:
    """The leaked blocks of one call stack."""

    stack: int  # Index in `CallStacks`
    direct: BlockSum  # Blocks that nothing points to; of a ring of blocks, one
    indirect: BlockSum  # Blocks that only leaked blocks point to
    address: int = 0  # The address of one of the blocks

    def __add__(self, other: LeakedStack) -> LeakedStack:
        """The sum, by the first one's call stack."""
        sums = self.direct + other.direct, self.indirect + other.indirect
        return LeakedStack(self.stack, *sums, self.address)

    @property
    def blocks(self) -> BlockSum:
        """All of them."""
        return self.direct + self.indirect


@dataclass(frozen=True, slots=True)
class ExitLeaks:
    """The result of a search for leaked blocks at a program's end."""

    stacks: tuple[LeakedStack, ...] = ()  # Most bytes first; stacks with direct leaks before others
    # All blocks of the program that were not freed.
    in_use: BlockSum = field(default_factory=BlockSum)
    # Memory that is swapped out and was not searched: what only it points to counts as leaked.
    swapped_bytes: int = 0
    # Pointers for which there was no memory: the blocks that they lead to count as in use.
    pointers_left_out: int = 0
    problem: str = ""  # Why the program could not be checked; empty if it was
