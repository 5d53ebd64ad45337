"""The live table: applies batches of events to the outstanding blocks and the totals.

Events come in the order of the ring, which for one address is the order in which
things happened (see ``probes/heap.bpf.c``). Sorted by address, stably, each address
has its own little story; whatever is born and dies within a batch only moves totals.
Everything is vectorised over the batch; loops run over threads and oddities only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import EVENT_KIND_MASK, EVENT_SIZE_BITS, EVENT_SIZE_MASK, EventKind
from tracelloc.blocks import Blocks, BlockStore
from tracelloc.ring import Events
from tracelloc.stacks import Stacks
from tracelloc.totals import Totals

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.intp]
Kinds = npt.NDArray[np.uint8]

CHUNK: Final = 1 << 16
"""Events handled at once: their numbers fit beside an address in 64 bits."""
_ADDRESS_BITS: Final = 48
_TID_LIMIT: Final = 1 << 22
"""Thread ids are below this (PID_MAX_LIMIT, include/linux/threads.h)."""


@dataclass(slots=True)
class _Pending:
    """What a thread's unfinished realloc took: to be given back if it fails."""

    address: int
    block: Blocks | None
    """One row, or None if the block was not known."""


@dataclass(slots=True)
class _Taken:
    """The frees of a batch that came first on their address, and what they met."""

    rows: Rows
    found: npt.NDArray[np.bool_]
    blocks: Blocks
    """One per True in ``found``."""

    def by(self, row: int) -> Blocks | None:
        """The block that the free in this row took from the table, if it did."""
        at = np.flatnonzero(self.rows == row)
        if not len(at) or not self.found[at[0]]:
            return None
        return self.blocks.select(np.array([np.count_nonzero(self.found[: at[0]])]))


@dataclass(slots=True)
class Oddities:
    """Events that did not fit the table, counted since the start."""

    unmatched_frees: int = 0
    """Frees of blocks that are not in the table: allocated before tracing began, or
    outside the size limits, or their allocation was lost."""
    address_reuses: int = 0
    """Allocations at an address that was still live: proof of a free that went unseen."""
    odd_restores: int = 0
    """Failed reallocs of blocks that were not noted as taken."""


class LiveTable:
    """Outstanding blocks, totals per stack and overall. Not thread safe."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self.blocks = BlockStore()
        self.totals = Totals.empty(max(len(stacks), 1))
        self.oddities = Oddities()
        self.events = 0
        """Events applied since the start."""
        self.trusting = True
        """No free has been lost so far, so an allocation that dies within its batch
        cannot hide a stale block at its address; saves a look-up for each of them."""
        self._pending: dict[int, _Pending] = {}
        # By thread id. Only what a chunk has just written is ever read, so that nothing
        # needs to be set beforehand: pages of threads that don't exist stay unused.
        self._last_event = np.empty(_TID_LIMIT, np.int64)

    def apply(self, events: Events) -> None:
        """Applies records of ``ring.RECORD_DTYPE`` in their order."""
        for start in range(0, len(events), CHUNK):
            self._apply_chunk(events[start : start + CHUNK])
        self.totals.note_peaks()

    def _apply_chunk(self, events: Events) -> None:
        address = np.ascontiguousarray(events["address"])
        tag = np.ascontiguousarray(events["size_tag"])
        caller = np.ascontiguousarray(events["tid"])
        kind = ((tag >> np.uint64(EVENT_SIZE_BITS)) & np.uint64(EVENT_KIND_MASK)).astype(np.uint8)
        batch = Blocks(
            address=address,
            size=tag & np.uint64(EVENT_SIZE_MASK),
            birth_ns=np.ascontiguousarray(events["time_ns"]),
            stack=self.stacks.indices(np.ascontiguousarray(events["stack_id"])),
            tid=caller.copy(),
        )
        self.totals.grow(len(self.stacks))
        new = kind == EventKind.ALLOC
        self.totals.allocate(batch.stack[new], batch.size[new], batch.birth_ns[new])

        order = self._settle_restores(_by_address(address), kind, caller, batch)
        matched = self._settle(order, kind, batch)
        self._note_pending(order, kind, caller, batch, matched)
        self.events += len(events)

    def _settle_restores(self, order: Rows, kind: Kinds, caller: U32, batch: Blocks) -> Rows:
        """Undoes failed reallocs. Returns the order without the events this settled.

        Nothing can happen to a block between a realloc's taking it and giving it back,
        so within a batch the two stand next to each other and cancel. Where the taking
        was in an earlier batch, the restore becomes an allocation of the old block.
        """
        restores = np.flatnonzero(kind == EventKind.RESTORE)
        if len(restores):
            settled = np.zeros(len(kind), np.bool_)
            sorted_kind, sorted_address = kind[order], batch.address[order]
            second = np.flatnonzero(
                (sorted_kind[1:] == EventKind.RESTORE)
                & (sorted_kind[:-1] == EventKind.REALLOC_FREE)
                & (sorted_address[1:] == sorted_address[:-1])
            )
            settled[order[second]] = settled[order[second + 1]] = True
            for row in restores[~settled[restores]].tolist():
                settled[row] = not self._give_back(row, int(caller[row]), batch)
                kind[row] = EventKind.ALLOC
            order = order[~settled[order]]
        if self._pending:
            # A thread that reports anything else has finished its realloc.
            for tid in set(self._pending).intersection(np.unique(caller).tolist()):
                del self._pending[tid]
        return order

    def _give_back(self, row: int, tid: int, batch: Blocks) -> bool:
        """Turns a restore into an allocation of the old block; False if there is none."""
        pending = self._pending.pop(tid, None)
        if pending is None or pending.address != int(batch.address[row]):
            self.oddities.odd_restores += 1
            return False
        if pending.block is None:
            self.oddities.unmatched_frees -= 1
            return False
        batch.put(np.array([row]), pending.block)
        self.totals.free(pending.block.stack, pending.block.size, sign=-1)
        return True

    def _settle(self, order: Rows, kind: Kinds, batch: Blocks) -> _Taken:
        """Matches allocations and frees."""
        address = batch.address[order]
        alloc = kind[order] == EventKind.ALLOC
        free = ~alloc
        same = address[1:] == address[:-1]
        after_alloc = np.zeros(len(order), np.bool_)
        after_alloc[1:] = same & alloc[:-1]
        first = np.ones(len(order), np.bool_)
        first[1:] = ~same
        before_free = np.zeros(len(order), np.bool_)
        before_free[:-1] = same & free[1:]
        last = np.ones(len(order), np.bool_)
        last[:-1] = ~same

        # Born and freed here; born here and replaced by a newer block at its address.
        died = order[alloc & before_free]
        replaced = order[alloc & ~before_free & ~last]
        ended = np.concatenate([died, replaced])
        self.totals.free(batch.stack[ended], batch.size[ended])
        self.oddities.address_reuses += len(replaced)
        self.oddities.unmatched_frees += int(np.count_nonzero(free & ~first & ~after_alloc))

        first_frees = order[free & first]
        found, taken = self.blocks.take(batch.address[first_frees])
        self.totals.free(taken.stack, taken.size)
        self.oddities.unmatched_frees += int(np.count_nonzero(~found))

        if not self.trusting:
            stale = self.blocks.take(batch.address[order[alloc & first & ~last]])[1]
            self._close_stale(stale)
        self._close_stale(self.blocks.put(batch.select(order[alloc & last])))
        return _Taken(first_frees, found, taken)

    def _close_stale(self, stale: Blocks) -> None:
        """Blocks whose address was handed out again: their free went unseen."""
        if len(stale):
            self.totals.free(stale.stack, stale.size)
            self.oddities.address_reuses += len(stale)
            self.trusting = False

    def _note_pending(
        self, order: Rows, kind: Kinds, caller: U32, batch: Blocks, taken: _Taken
    ) -> None:
        """Keeps what the reallocs took that were still under way at the batch's end.

        A thread is in one realloc at most, and its taking is then its last event.
        """
        takings = np.flatnonzero(kind == EventKind.REALLOC_FREE)
        if not len(takings):
            return
        self._last_event[caller] = np.arange(len(batch))
        unfinished = takings[self._last_event[caller[takings]] == takings]
        for row in unfinished.tolist():
            block = taken.by(row)
            if block is None:
                at = int(np.flatnonzero(order == row)[0])
                before = order[at - 1 : at]
                if len(before) and _made(before[0], row, kind, batch):
                    block = batch.select(before)
            self._pending[int(caller[row])] = _Pending(int(batch.address[row]), block)


def _made(before: np.intp, row: int, kind: Kinds, batch: Blocks) -> bool:
    """Whether the event before made the block that the one in this row is about."""
    same = batch.address[before] == batch.address[row]
    return bool(same and kind[before] == EventKind.ALLOC)


def _by_address(address: U64) -> Rows:
    """A stable order by address.

    Sorting numbers is several times faster than sorting indices, so the position
    within the chunk rides in the low bits, which makes the keys distinct as well.
    """
    if len(address) and int(address.max()) >> _ADDRESS_BITS:
        return np.argsort(address, kind="stable")
    shift = np.uint64(64 - _ADDRESS_BITS)
    keys = (address << shift) | np.arange(len(address), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(CHUNK - 1)).astype(np.intp)
