"""What a walk of a heap yields: every block and every free stretch, by address.

A heap is a sorted array of 64-bit *entries*, each an address with its state in the three lowest
bits. An entry reaches to the next one, and one with the state ``END`` stands where nothing follows:
8 bytes a block, and sizes are differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from tracelloc.errors import UnsupportedError
from tracelloc.model.mallocs import MallocLibrary
from tracelloc.record.process.memory import U64, Mask

STATE_BITS: Final = np.uint64(7)
ADDRESS_BITS: Final = ~STATE_BITS
NO_ENTRIES: Final = np.empty(0, np.uint64)


class BlockState(IntEnum):
    """State of what begins at an entry; the numbers stand in ``chunks.pyx`` as well."""

    FREE = 0
    IN_USE = 1
    CACHED = 2
    """Free, but kept by a thread's cache: the malloc library counts it as in use."""
    FAST = 3
    """Free, but in a fastbin: not merged with its neighbours yet."""
    TOP = 4
    """The rest of a heap, from which new blocks are cut."""
    MAPPED = 5
    """In use, in a mapping of its own."""
    OWN = 6
    """The malloc library's own data between the blocks."""
    END = 7
    """Nothing, or nothing known, up to the next entry."""


class NotWalkableError(UnsupportedError):
    """A heap whose structures are not understood; the text says why."""


@dataclass(slots=True)
class Arena:
    """A part of the heap with its own free lists."""

    name: str
    library: MallocLibrary
    entries: U64
    system_bytes: int
    """What the library has requested from the kernel for it, by its own count."""
    header_bytes: int = 0
    """Bytes before the first block of each stretch, which have no entry."""
    foreign_bytes: int = 0
    """Bytes between its blocks that others have requested from the kernel (sbrk)."""
    unseen: list[str] = field(default_factory=list)
    """Where a walk had to stop, and why."""

    @property
    def seen_bytes(self) -> int:
        """Bytes of ``system_bytes`` that are accounted for."""
        return int(self.sizes.sum()) + self.header_bytes + self.foreign_bytes

    @property
    def sizes(self) -> U64:
        """Bytes from each entry to the next; 0 for ends. In the order of the entries."""
        addresses = self.entries & ADDRESS_BITS
        sizes = np.zeros(len(addresses), np.uint64)
        np.subtract(addresses[1:], addresses[:-1], out=sizes[:-1])
        sizes[self.states == BlockState.END] = 0
        return sizes

    @property
    def states(self) -> U64:
        """The ``BlockState`` of each entry."""
        return self.entries & STATE_BITS

    @property
    def addresses(self) -> U64:
        """The address of each entry."""
        return self.entries & ADDRESS_BITS


@dataclass(slots=True)
class WalkedHeap:
    """The heap of one process at one time, one library's or several libraries'."""

    arenas: list[Arena]
    metadata: list[tuple[int, int]]
    """Start and end of the malloc libraries' own data outside the entries: their pointers to free
    memory mean nothing."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know about missing parts; may contain names from the target."""
    retries: int = 0
    """How often a piece had to be read again, because the process changed it meanwhile."""
    absent_links: int = 0
    """Links of free lists that led to memory that is swapped out, or not there."""

    def live(self) -> LiveBlocks:
        """All blocks in use, by address."""
        starts, ends, nexts = [], [], []
        for arena in self.arenas:
            states, addresses = arena.states, arena.addresses
            used = np.flatnonzero((states == BlockState.IN_USE) | (states == BlockState.MAPPED))
            starts.append(addresses[used] + np.uint64(user_offset(arena)))
            following = addresses[used + 1]
            ends.append(following + np.uint64(8 if user_offset(arena) else 0))
            nexts.append(following + np.uint64(user_offset(arena)))
        start, end, reach = (
            np.concatenate(parts) if parts else NO_ENTRIES for parts in (starts, ends, nexts)
        )
        order = np.argsort(start, kind="stable") if len(starts) > 1 else slice(None)
        return LiveBlocks(start[order], end[order], reach[order])


def user_offset(arena: Arena) -> int:
    """Bytes from an entry's address to the one that the program got."""
    return 16 if arena.library is MallocLibrary.GLIBC else 0


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks in use, in the order of their addresses."""

    starts: U64
    """The addresses that the program got."""
    ends: U64
    """Ends of the bytes that it may use."""
    reach: U64
    """An address below this belongs to the block: a pointer to the end of an array does."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> U64:
        """Bytes that may be used, in the order of the addresses."""
        return self.ends - self.starts

    def select(self, rows: Mask) -> LiveBlocks:
        """Some of the blocks."""
        return LiveBlocks(self.starts[rows], self.ends[rows], self.reach[rows])
