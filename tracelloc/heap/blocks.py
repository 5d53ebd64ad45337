"""Outstanding blocks as sorted columns: 32 bytes each, looked up in batches.

The store is a short list of runs, each sorted by address, the sizes falling
geometrically (a log-structured merge). A freed block leaves its row behind, marked
dead: allocators hand the same addresses out again and again, so most new blocks
revive such a row in place. An address has at most one row in all runs together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

DEAD: Final = np.uint32(0xFFFFFFFF)
"""In column ``stack``: the row's block was freed."""

_COLUMNS: Final = (
    ("address", np.uint64),
    ("size", np.uint64),
    ("birth_ns", np.uint64),
    ("stack", np.uint32),
    ("tid", np.uint32),
)
_GROWTH: Final = 3
"""Two neighbouring runs are merged when the older is less than this many times larger."""
_COMPACT_AT: Final = 4096
"""Runs smaller than this are not worth compacting."""


@dataclass(slots=True)
class Blocks:
    """Columns of equal length: one block per row, addresses ascending.

    ``size`` in bytes, ``birth_ns`` on CLOCK_MONOTONIC, ``stack`` an index of
    ``stacks.Stacks``, ``tid`` the thread that allocated.
    """

    address: U64
    size: U64
    birth_ns: U64
    stack: U32
    tid: U32

    @classmethod
    def empty(cls, rows: int = 0) -> Blocks:
        """Uninitialized columns of ``rows`` rows."""
        return cls._of([np.empty(rows, dtype) for _, dtype in _COLUMNS])

    @classmethod
    def _of(cls, columns: list[npt.NDArray[Any]]) -> Blocks:
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.address)

    def copy(self) -> Blocks:
        """The same rows, independent of these."""
        return Blocks(*(getattr(self, name).copy() for name, _ in _COLUMNS))

    def select(self, rows: Mask | Rows) -> Blocks:
        """A copy of some rows."""
        return Blocks(*(getattr(self, name)[rows] for name, _ in _COLUMNS))

    def fork(self) -> Blocks:
        """The same rows, independent of these: whoever first writes to a column copies it."""
        for name, _ in _COLUMNS:
            getattr(self, name).setflags(write=False)
        return Blocks(*(getattr(self, name) for name, _ in _COLUMNS))

    def own(self, name: str) -> npt.NDArray[Any]:
        """A column to be written to."""
        column: npt.NDArray[Any] = getattr(self, name)
        if not column.flags.writeable:
            column = column.copy()
            setattr(self, name, column)
        return column

    def put(self, rows: Rows | Mask, other: Blocks) -> None:
        """Overwrites some rows."""
        for name, _ in _COLUMNS:
            self.own(name)[rows] = getattr(other, name)

    @classmethod
    def concatenate(cls, parts: list[Blocks]) -> Blocks:
        """All rows of the parts, in their order."""
        if not parts:
            return cls.empty()
        return cls._of(
            [np.concatenate([getattr(part, name) for part in parts]) for name, _ in _COLUMNS]
        )


class BlockCopy:
    """The blocks of one moment. Made in a hurry; put in order when first looked at."""

    __slots__ = ("_blocks", "_runs")

    def __init__(self, runs: list[Blocks]) -> None:
        self._runs = runs
        self._blocks: Blocks | None = None

    def blocks(self) -> Blocks:
        """All of them, in no order. Read only. Not for two threads at a time."""
        if self._blocks is None:
            self._blocks = Blocks.concatenate([run.select(run.stack != DEAD) for run in self._runs])
            self._runs = []
        return self._blocks


class _Run:
    """One sorted run, with the number of its dead rows."""

    __slots__ = ("blocks", "dead")

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.dead = 0

    def __len__(self) -> int:
        return len(self.blocks)

    def find(self, addresses: U64) -> tuple[Mask, Rows]:
        """Which addresses have a row here, dead or alive, and where."""
        column = self.blocks.address
        rows = np.searchsorted(column, addresses)
        np.minimum(rows, len(column) - 1, out=rows)
        here = column[rows] == addresses
        return here, rows[here]

    def drop_dead(self) -> None:
        if self.dead:
            self.blocks = self.blocks.select(self.blocks.stack != DEAD)
            self.dead = 0


class BlockStore:
    """The live blocks of one address space."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.count = 0
        """Live blocks."""

    def take(self, addresses: U64) -> tuple[Mask, Blocks]:
        """Removes blocks: which of the (sorted, distinct) addresses were live, and these."""
        found = np.zeros(len(addresses), np.bool_)
        parts: list[Blocks] = []
        positions: list[Rows] = []
        open_positions = np.arange(len(addresses))
        for run in self._runs:
            if not len(open_positions):
                break
            here, rows = run.find(addresses[open_positions])
            at = open_positions[here]
            alive = run.blocks.stack[rows] != DEAD
            rows, at = rows[alive], at[alive]
            if len(rows):
                parts.append(run.blocks.select(rows))
                positions.append(at)
                run.blocks.own("stack")[rows] = DEAD
                run.dead += len(rows)
                found[at] = True
            open_positions = open_positions[~here]
        taken = Blocks.concatenate(parts)
        if len(parts) > 1:
            taken = taken.select(np.argsort(np.concatenate(positions)))
        self.count -= len(taken)
        self._compact()
        return found, taken

    def put(self, blocks: Blocks) -> Blocks:
        """Adds blocks (addresses sorted, distinct). Returns those that stood there already.

        A live block at the same address means that its free was never seen: it is
        replaced, and the caller counts it.
        """
        if not len(blocks):
            return Blocks.empty()
        added = len(blocks)  # the store takes the columns over, merging empties them
        replaced: list[Blocks] = []
        pending = blocks
        for run in self._runs:
            here, rows = run.find(pending.address)
            if not len(rows):
                continue
            alive = run.blocks.stack[rows] != DEAD
            if alive.any():
                replaced.append(run.blocks.select(rows[alive]))
            run.blocks.put(rows, pending.select(here))
            run.dead -= int(len(rows) - np.count_nonzero(alive))
            pending = pending.select(~here)
            if not len(pending):
                break
        if len(pending):
            self._runs.append(_Run(pending))
            self._merge()
        gone = Blocks.concatenate(replaced)
        self.count += added - len(gone)
        return gone

    def runs(self) -> Iterator[tuple[Blocks, Mask]]:
        """All rows in stretches, with which of them are alive. Read only, not to be kept."""
        for run in self._runs:
            yield run.blocks, run.blocks.stack != DEAD

    def fork(self) -> BlockStore:
        """The same blocks, independent of these."""
        child = BlockStore()
        child.count = self.count
        for run in self._runs:
            shared = _Run(run.blocks.fork())
            shared.dead = run.dead
            child._runs.append(shared)
        return child

    def copy(self) -> BlockCopy:
        """All blocks as they are now. Copies memory and does nothing else."""
        return BlockCopy([run.blocks.copy() for run in self._runs])

    def _merge(self) -> None:
        runs = self._runs
        while len(runs) > 1 and len(runs[-2]) < _GROWTH * len(runs[-1]):
            newer, older = runs.pop(), runs.pop()
            newer.drop_dead()
            older.drop_dead()
            if len(newer) and len(older):
                runs.append(_Run(_merged(older.blocks, newer.blocks)))
            elif len(newer) or len(older):
                runs.append(newer if len(newer) else older)

    def _compact(self) -> None:
        for run in self._runs:
            if len(run) >= _COMPACT_AT and run.dead > 3 * len(run) // 4:
                run.drop_dead()
        self._runs = [run for run in self._runs if len(run)]


def _merged(first: Blocks, second: Blocks) -> Blocks:
    """Two sorted runs as one. Empties both, column by column, to keep the peak low."""
    into = np.searchsorted(first.address, second.address) + np.arange(len(second))
    from_first = np.ones(len(first) + len(second), np.bool_)
    from_first[into] = False
    columns: list[npt.NDArray[Any]] = []
    for name, dtype in _COLUMNS:
        column = np.empty(len(from_first), dtype)
        column[into] = getattr(second, name)
        column[from_first] = getattr(first, name)
        columns.append(column)
        setattr(first, name, column[:0])
        setattr(second, name, column[:0])
    return Blocks(*columns)
