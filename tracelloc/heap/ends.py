"""Blocks that ended in a chunk of events: who made each of them, and who ended it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tracelloc.heap.blocks import U32, U64, Blocks, Mask, Rows

EARLIER: Final = -1
"""In place of a row: the block was there before these events."""


@dataclass(slots=True)
class Chunk:
    """Some events as columns."""

    address: U64
    time_ns: U64
    """CLOCK_MONOTONIC, at the kernel's last tick."""
    tid: U32
    size: U64
    """Bytes as requested, of allocations."""
    made: Rows
    """Which of them are allocations."""
    made_stack: U32
    """Of each of these, the stack."""
    in_order: bool
    """Nothing is missing, and rows are in the order of time."""
    restored: dict[int, Blocks] = field(default_factory=dict)
    """By row: events that give back an older block, and that block."""

    def __len__(self) -> int:
        return len(self.address)


@dataclass(slots=True)
class Ends:
    """A row for each block; all columns are of one length, in no order.

    Blocks that were closed because their address was handed out again are not among them:
    nobody was seen to end those.
    """

    row: Rows
    """Of the event that ended it."""
    made_row: Rows
    """Of the event that made it, or ``EARLIER``."""
    stack: U32
    """That allocated it."""
    size: U64
    """Bytes as requested."""
    maker: U32
    """The thread that allocated it."""
    ender: U32
    """The thread that freed or resized it."""
    earlier_birth_ns: U64
    """Only of those that were made earlier."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def is_remote(self) -> Mask:
        """Where another thread ended the block than the one that made it."""
        remote: Mask = self.maker != self.ender
        return remote

    def birth_ns(self, chunk: Chunk) -> U64:
        """When each was made; of the chunk's events."""
        births = np.empty(len(self), np.uint64)
        here = self.made_row != EARLIER
        births[here], births[~here] = chunk.time_ns[self.made_row[here]], self.earlier_birth_ns
        return births


def ends_of(chunk: Chunk, pairs: tuple[Rows, Rows], taken: tuple[Rows, Blocks]) -> Ends:
    """All ends.

    ``pairs``: rows that made blocks, and those that ended them. ``taken``: rows that ended
    blocks which were there before, and these.
    """
    made_rows, end_rows = pairs
    later_rows, blocks = taken
    back = [row for row in chunk.restored if (made_rows == row).any()]
    if back:
        given_back = np.isin(made_rows, back)
        later_rows = np.concatenate([end_rows[given_back], later_rows])
        came = [chunk.restored[row] for row in made_rows[given_back].tolist()]
        blocks = Blocks.concatenate([*came, blocks])
        made_rows, end_rows = made_rows[~given_back], end_rows[~given_back]
    stack_of = np.empty(len(chunk), np.uint32)
    stack_of[chunk.made] = chunk.made_stack
    row = np.concatenate([end_rows, later_rows])
    return Ends(
        row=row,
        made_row=np.concatenate([made_rows, np.full(len(later_rows), EARLIER, np.intp)]),
        stack=np.concatenate([stack_of[made_rows], blocks.stack]),
        size=np.concatenate([chunk.size[made_rows], blocks.size]),
        maker=np.concatenate([chunk.tid[made_rows], blocks.tid]),
        ender=chunk.tid[row],
        earlier_birth_ns=blocks.birth_ns,
    )
