"""How a process's heap is used at one time, found by walking it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tracelloc.model.process import MallocLibrary


@dataclass(frozen=True, slots=True)
class BlockSum:
    """A number of blocks, and their bytes."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: BlockSum) -> BlockSum:
        return BlockSum(self.count + other.count, self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True)
class ArenaUsage:
    """A part of the heap with its own free lists."""

    name: str
    library: MallocLibrary
    system_bytes: int
    """Requested from the kernel, by the library's own count."""
    seen_bytes: int
    """Part of ``system_bytes`` that the walk accounts for."""
    in_use: BlockSum
    cached: BlockSum
    """Free blocks that threads keep for themselves."""
    free: BlockSum
    """Other free blocks, without the rest at the end of the heap."""
    top_bytes: int
    """The rest at the end of the heap."""
    own_bytes: int
    """The library's own data between the blocks, and what others have put there."""
    free_resident_bytes: int
    """Free memory of all kinds that is resident."""
    resident_bytes: int
    """All of it that is resident."""
    unseen: tuple[str, ...] = ()
    """Places that were not understood."""


@dataclass(frozen=True, slots=True)
class SizeUsage:
    """Blocks in use of one size."""

    usable_bytes: int
    """Most bytes that a program may have requested for such a block."""
    blocks: BlockSum


@dataclass(frozen=True, slots=True)
class ClassUsage:
    """Blocks in use that begin with an object of a C++ class."""

    name: str
    blocks: BlockSum


@dataclass(frozen=True, slots=True)
class LargeBlock:
    """One of the largest blocks in use."""

    address: int
    usable_bytes: int
    class_name: str
    """Empty if unknown."""
    contents: bytes
    """The first bytes of the block; empty unless requested."""


@dataclass(frozen=True, slots=True)
class HeapUsage:
    """The heap of one process."""

    time_s: float
    """Seconds since 1970."""
    arenas: tuple[ArenaUsage, ...]
    sizes: tuple[SizeUsage, ...]
    """Blocks in use by size, most bytes first."""
    classes: tuple[ClassUsage, ...]
    """Blocks in use by class, most bytes first."""
    largest: tuple[LargeBlock, ...]
    trimmable_bytes: int | None
    """What malloc_trim(0) would return to the kernel now; None if the library has no such call."""
    notes: tuple[str, ...] = ()
    """What is missing; may contain names from the target."""
    retries: int = 0
    """How often a part was read again, since the process changed it meanwhile."""
    swapped_bytes: int = 0
    """Memory of the process that is swapped out, and was not read."""
    anonymous_bytes: int = 0
    """Resident memory of the process without a file, the heap included."""
    rss_bytes: int = 0

    @property
    def in_use(self) -> BlockSum:
        """All blocks in use."""
        return BlockSum(
            sum(arena.in_use.count for arena in self.arenas),
            sum(arena.in_use.size_bytes for arena in self.arenas),
        )

    @property
    def free_resident_bytes(self) -> int:
        """Free memory that the process keeps."""
        return sum(arena.free_resident_bytes for arena in self.arenas)

    @property
    def coverage(self) -> float:
        """The part of the heap that was seen, 0 to 1."""
        return part_seen(self.arenas)


class SeenMemory(Protocol):
    """Memory that a malloc library requested, and how much of it a walk accounts for, in bytes."""

    @property
    def system_bytes(self) -> int:
        """Requested from the kernel, by the library's own count."""

    @property
    def seen_bytes(self) -> int:
        """Part of ``system_bytes`` that the walk accounts for."""


def part_seen(arenas: Iterable[SeenMemory]) -> float:
    """The part of some arenas that a walk accounts for, 0 to 1."""
    sizes = [(arena.system_bytes, arena.seen_bytes) for arena in arenas]
    system_bytes = sum(system for system, _ in sizes)
    return sum(map(min, sizes)) / system_bytes if system_bytes else 1.0
