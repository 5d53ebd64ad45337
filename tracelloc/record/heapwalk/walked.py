"""What a walk of a heap yields: every block and every free stretch, by address.

A heap is a sorted array of 64-bit *entries*, each an address with its state in the three lowest
bits. An entry reaches to the next one, and one with the state ``END`` stands where nothing follows:
8 bytes a block, and sizes are differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.errors import UnsupportedError
from tracelloc.model.heapusage import part_seen
from tracelloc.model.process import MallocLibrary
from tracelloc.record.process.memory import U64

STATE_BITS: Final = np.uint64(7)
ADDRESS_BITS: Final = ~STATE_BITS
NO_ENTRIES: Final = np.empty(0, np.uint64)
_SLICE: Final = 1 << 18


class BlockState(IntEnum):
    """State of what begins at an entry; the numbers stand in ``chunks.pyx`` as well."""

    FREE = 0
    IN_USE = 1
    CACHED = 2  # Free, but kept by a thread's cache: the malloc library counts it as in use
    FAST = 3  # Free, but in a fastbin: not merged with its neighbours yet
    TOP = 4  # The rest of a heap, from which new blocks are cut
    MAPPED = 5  # In use, in a mapping of its own
    OWN = 6  # The malloc library's own data between the blocks
    END = 7  # Nothing, or nothing known, up to the next entry


class NotWalkableError(UnsupportedError):
    """A heap whose structures are not understood; the text says why."""


class EntrySlice(NamedTuple):
    """Some consecutive entries, decoded."""

    addresses: U64
    sizes: U64  # Bytes to the next entry; 0 for ends
    states: npt.NDArray[np.uint8]


@dataclass(slots=True)
class Arena:
    """A part of the heap with its own free lists."""

    name: str
    library: MallocLibrary
    entries: U64
    system_bytes: int  # What the library has requested from the kernel for it, by its own count
    header_bytes: int = 0  # Bytes before the first block of each stretch, which have no entry
    # Bytes between its blocks that others have requested from the kernel (sbrk).
    foreign_bytes: int = 0
    unseen: list[str] = field(default_factory=list)  # Where a walk had to stop, and why

    @property
    def seen_bytes(self) -> int:
        """Bytes of ``system_bytes`` that are accounted for."""
        held = sum(int(some.sizes.sum()) for some in self.slices())
        return held + self.header_bytes + self.foreign_bytes

    @property
    def sizes(self) -> U64:
        """Bytes from each entry to the next; 0 for ends. In the order of the entries."""
        return np.concatenate([some.sizes for some in self.slices()] or [NO_ENTRIES])

    def slices(self) -> Iterator[EntrySlice]:
        """The entries decoded, some at a time: all at once would take four times the memory."""
        for at in range(0, len(self.entries), _SLICE):
            entries = self.entries[at : at + _SLICE + 1]
            addresses, states = entries & ADDRESS_BITS, (entries & STATE_BITS).astype(np.uint8)
            sizes = np.diff(addresses, append=addresses[-1:])
            sizes[states == BlockState.END] = 0
            yield EntrySlice(addresses[:_SLICE], sizes[:_SLICE], states[:_SLICE])

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yields (start, end) of contiguous entries, by address."""
        ends = np.flatnonzero(self.entries & STATE_BITS == BlockState.END)
        starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.intp)[: len(ends)]
        pairs = (self.entries[rows] & ADDRESS_BITS for rows in (starts, ends))
        yield from zip(*(column.tolist() for column in pairs), strict=True)

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
    # Start and end of the malloc libraries' own data outside the entries: their pointers to free
    # memory mean nothing.
    metadata: list[tuple[int, int]]
    # What a reader must know about missing parts; may contain names from the target.
    notes: list[str] = field(default_factory=list)
    # How often a piece had to be read again, because the process changed it meanwhile.
    retries: int = 0
    # Links of free lists that led to memory that is swapped out, or not there.
    absent_links: int = 0

    @property
    def coverage(self) -> float:
        """The part of the heap that was seen, 0 to 1."""
        return part_seen(self.arenas)


def user_offset(arena: Arena) -> int:
    """Bytes from an entry's address to the one that the program got."""
    return 16 if arena.library is MallocLibrary.GLIBC else 0


def overhead_bytes(arena: Arena, state: BlockState = BlockState.IN_USE) -> int:
    """Bytes of a block of this state that the program can't use."""
    return max(0, user_offset(arena) - (8 if state is BlockState.IN_USE else 0))
