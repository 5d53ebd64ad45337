"""Blocks that nothing in a process points to: at one time (lost memory), or when it ends."""

from __future__ import annotations

from enum import Enum

from tracelloc.dataclass import dataclass, field
from tracelloc.model.blocks import BlockSum


class Shape(Enum):
    """How the blocks of a lost structure point to each other.

    Nodes are the structure's first block and all blocks of its size and class.
    """

    BLOCK = "block"  # One node
    LIST = "list"
    RING = "ring"  # A list whose last node points back to a node
    DOUBLY_LINKED_LIST = "doubly linked list"
    TREE = "tree"  # Each node has one parent; nodes may point to their parents
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class LostGroup:
    """Lost structures that are alike: in shape, and in size and class of their first blocks."""

    shape: Shape
    class_name: str  # C++ class of the first blocks; empty if unknown
    usable_bytes: int  # Most bytes that a program may have requested for a first block
    structures: int  # Number of structures
    least_nodes: int  # Nodes of the smallest structure
    most_nodes: int  # Nodes of the largest structure
    blocks: BlockSum  # All blocks of the structures, also those to which nodes lead
    example: int  # Address of a first block
    contents: bytes = b""  # The first bytes of the example block; empty unless requested


@dataclass(frozen=True, slots=True)
class LostMemory:
    """The result of a search for lost blocks."""

    time_s: float  # Seconds since 1970
    in_use: BlockSum  # All blocks of the heap that are in use
    lost: BlockSum  # Blocks that nothing points to, except other lost blocks
    groups: tuple[LostGroup, ...]  # Neither reported before nor suppressed, most bytes first
    searches: int  # Number of searches that agreed
    known: BlockSum  # Lost blocks that were reported before
    suppressed: BlockSum
    coverage: float = 1.0  # Share of the heap's bytes that the search could read, 0 to 1
    swapped_bytes: int = 0  # Bytes of the process that are swapped out, and were not searched
    pointers_left_out: int = 0  # For want of memory: what they lead to counts as reachable
    probably_lost: BlockSum = field(default_factory=BlockSum)  # Only unwritten blocks point there
    probable: tuple[LostGroup, ...] = ()  # As ``groups``, of these blocks
    notes: tuple[str, ...] = ()  # Gaps in the search; may contain names from the target


@dataclass(frozen=True, slots=True)
class LeakedStack:
    """The leaked blocks of one call stack."""

    stack: int  # Index in `CallStacks`
    direct: BlockSum  # Blocks that nothing points to, and one block of each ring
    indirect: BlockSum  # Blocks that only leaked blocks point to
    address: int = 0  # Address of one of the blocks
    part: int = 0  # Number of the part of the run that allocated them, if it is told apart

    def __add__(self, other: LeakedStack) -> LeakedStack:
        """Adds up the blocks of two records; the call stack is the first record's."""
        sums = self.direct + other.direct, self.indirect + other.indirect
        return LeakedStack(self.stack, *sums, self.address, self.part)

    @property
    def blocks(self) -> BlockSum:
        return self.direct + self.indirect


@dataclass(frozen=True, slots=True)
class ExitLeaks:
    """The result of a search for leaked blocks at a program's end."""

    stacks: tuple[LeakedStack, ...] = ()  # Most bytes first; stacks with direct leaks before others
    in_use: BlockSum = field(default_factory=BlockSum)  # That were not freed
    swapped_bytes: int = 0  # Swapped out, and not searched: what only they point to is leaked
    pointers_left_out: int = 0  # For want of memory: what they lead to counts as in use
    problem: str = ""  # Why the program could not be checked; empty if it was
