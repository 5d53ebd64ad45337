"""Blocks that ended in a chunk of events: who made each of them, and who ended it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import U32, U64, Blocks, Mask, Rows
from tracelloc.heap.chunk import Chunk

T = TypeVar("T", bound=np.generic)


@dataclass(slots=True)
class Ends:
    """A row for each block: first those that were made in the same chunk, then earlier ones.

    Blocks that were closed because their address was handed out again are not among them:
    nobody was seen to end those.
    """

    row: Rows
    """Of the event that ended it."""
    made_row: Rows
    """Of the event that made it; only of the first ones."""
    stack: U32
    """That allocated it."""
    size: U64
    """Bytes as requested."""
    is_remote: Mask
    """Whether another thread ended it than the one that made it."""
    maker: U32
    """The thread that allocated it."""
    earlier: Blocks
    """Those that were made earlier."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def here(self) -> int:
        """How many were made in the same chunk."""
        return len(self.made_row)

    def birth_ns(self, chunk: Chunk) -> U64:
        """When each was made; of the chunk's events."""
        return _joined(chunk.time_ns, self.made_row, self.earlier.birth_ns)


def ends_of(chunk: Chunk, pairs: tuple[Rows, Rows], taken: tuple[Rows, Blocks]) -> Ends:
    """All ends.

    ``pairs``: rows that made blocks, and those that ended them. ``taken``: rows that ended
    blocks which were there before, and these.
    """
    made_rows, end_rows = pairs
    later_rows, blocks = taken
    given_back = np.isin(made_rows, list(chunk.restored)) if chunk.restored else None
    if given_back is not None and given_back.any():
        later_rows = np.concatenate([end_rows[given_back], later_rows])
        blocks = Blocks.concatenate([chunk.blocks(made_rows[given_back]), blocks])
        made_rows, end_rows = made_rows[~given_back], end_rows[~given_back]
    row = np.concatenate([end_rows, later_rows])
    maker = _joined(chunk.tid, made_rows, blocks.tid)
    return Ends(
        row=row,
        made_row=made_rows,
        stack=_joined(chunk.stack, made_rows, blocks.stack),
        size=_joined(chunk.size, made_rows, blocks.size),
        is_remote=maker != chunk.tid.take(row),
        maker=maker,
        earlier=blocks,
    )


def _joined(column: npt.NDArray[T], rows: Rows, more: npt.NDArray[Any]) -> npt.NDArray[T]:
    """Some rows of a column, then ``more`` of the same kind."""
    joined = np.empty(len(rows) + len(more), column.dtype)
    column.take(rows, out=joined[: len(rows)], mode="clip")  # other modes copy once more
    joined[len(rows) :] = more
    return joined
