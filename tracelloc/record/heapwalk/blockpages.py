"""Pages of a heap that have blocks of one size each, and lists of their free blocks."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import I64
from tracelloc.record.heapwalk.arenas import BlockState, joined
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import U64, Mask

States = npt.NDArray[np.uint8]

_MOST_BLOCKS: Final = 1 << 16  # Of one list


class Followed(NamedTuple):
    """What lists of free blocks have led to, by list."""

    counts: I64  # Number of blocks
    lasts: U64  # Address of the last block, or what leads to none
    is_whole: Mask  # Whether it has ended as a list does, with blocks of its own only


@dataclass(slots=True)
class BlockPages:
    """Pages by address."""

    starts: U64  # Where each page's first block is
    sizes: U64  # Bytes of each of its blocks
    counts: I64  # Number of its blocks

    def states(self) -> States:
        return np.full(int(self.counts.sum()), BlockState.IN_USE, np.uint8)

    def find(self, addresses: U64) -> tuple[I64, I64, Mask]:
        """Returns each address's page, its block there, and whether it begins one."""
        rows = np.maximum(np.searchsorted(self.starts, addresses, side="right") - 1, 0)
        inside = (addresses - self.starts[rows]).astype(np.int64)
        sizes = self.sizes[rows].astype(np.int64)
        numbers = inside // sizes
        is_block = (inside >= 0) & (numbers < self.counts[rows]) & (inside == numbers * sizes)
        return rows, numbers, is_block

    def follow(
        self,
        reader: PieceReader,
        heads: U64,
        states: States,
        state: BlockState,
        *,
        pages: I64 | None = None,
        sizes: U64 | None = None,
    ) -> Followed:
        """Follows lists of free blocks, all of which may have the same ``pages`` or ``sizes``."""
        if not len(self.starts):
            return Followed(np.zeros(len(heads), np.int64), heads, heads == 0)
        parts, room = [np.empty(0, np.uint64)], np.empty(_MOST_BLOCKS, np.uint64)
        low = int(self.starts[0])
        high = int(self.starts[-1] + self.sizes[-1] * np.uint64(self.counts[-1]))
        lengths, is_whole = np.zeros(len(heads), np.int64), np.ones(len(heads), np.bool_)
        with reader.lists() as links:
            for n in np.flatnonzero(heads).tolist():
                lengths[n], is_whole[n] = links.follow_links(int(heads[n]), low, high, room)
                parts.append(room[: lengths[n]].copy())
        at, lists = np.concatenate(parts), np.repeat(np.arange(len(heads)), lengths)
        lasts = heads.copy()
        lasts[lengths > 0] = at[(np.cumsum(lengths) - 1)[lengths > 0]]
        rows, numbers, good = self.find(at)
        if pages is not None:
            good &= rows == pages[lists]
        if sizes is not None:
            good &= self.sizes[rows] == sizes[lists]
        places = ((np.cumsum(self.counts) - self.counts)[rows] + numbers)[good]
        is_new = np.zeros(len(places), np.bool_)  # Changed lists may be rings, or lead to one block
        is_new[np.unique(places, return_index=True)[1]] = True
        good[good] = is_new & (states[places] == BlockState.IN_USE)
        states[places] = state
        is_whole[lists[~good]] = False
        return Followed(np.bincount(lists[good], minlength=len(heads)), lasts, is_whole)

    def entries(self, states: States, is_sound: Mask, others: U64) -> U64:
        """Returns entries for all blocks of sound pages, and other entries, by address."""
        rows = np.repeat(np.arange(len(self.starts)), self.counts)
        firsts = np.cumsum(self.counts) - self.counts
        numbers = (np.arange(len(rows)) - firsts[rows]).astype(np.uint64)
        starts = self.starts[rows] + numbers * self.sizes[rows]
        ends = (self.starts + self.counts.astype(np.uint64) * self.sizes)[is_sound]
        ends |= np.uint64(BlockState.END)
        return joined(np.concatenate([(starts | states)[is_sound[rows]], ends, others]))
