"""The live table: applies batches of events to the outstanding blocks and the totals.

Events come in the order of the ring, which for one address is the order in which
things happened (see ``probes/heap.bpf.c``). Sorted by address, stably, each address
has its own little story; whatever is born and dies within a batch only moves totals.
Everything is vectorised over the batch; loops run over threads and oddities only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import EventKind
from tracelloc.capture.ring import Events
from tracelloc.heap.blocks import U64, Blocks, BlockStore, Rows
from tracelloc.heap.chunk import Chunk
from tracelloc.heap.cohorts import Cohorts
from tracelloc.heap.ends import ends_of
from tracelloc.heap.lives import Lives
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.temporary import SOON, Soon
from tracelloc.heap.threads import NOBODY
from tracelloc.heap.totals import Sums, Totals

Columns = npt.NDArray[Any]
"""A structured array."""

CHUNK: Final = 1 << 16
"""Events handled at once: their numbers fit beside an address in 64 bits."""
_ADDRESS_BITS: Final = 48
_POSITION_BITS: Final = np.uint64(64 - _ADDRESS_BITS)


@dataclass(slots=True)
class _Pending:
    """What a thread's unfinished realloc took: to be given back if it fails."""

    address: int
    block: Blocks | None
    """One row, or None if the block was not known."""
    time_ns: int
    """When it was taken, CLOCK_MONOTONIC."""
    was_temporary: bool
    """Whether it was counted as temporary then."""


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

    def __init__(
        self,
        stacks: Stacks,
        sample_bytes: int | None = None,
        soon: Soon = SOON,
        like: LiveTable | None = None,
    ) -> None:
        """``sample_bytes``: mean distance of samples if not every block is reported.

        ``soon``: which blocks are temporary. ``like``: of the process that this one was
        forked off.
        """
        self.stacks = stacks
        if like is None:
            self.blocks = BlockStore()
            self.totals = Totals.empty(max(len(stacks), 1), sample_bytes)
            self.cohorts = Cohorts()
        else:
            self.blocks = like.blocks.fork()
            self.totals = like.totals.fork()
            self.cohorts = like.cohorts.fork()
        self.lives = Lives(self.totals, soon)
        self.oddities = Oddities()
        self.events = 0
        """Events applied since the start."""
        self._newest_ns = 0
        self.trusting = True
        """No free has been lost so far, so an allocation that dies within its batch
        cannot hide a stale block at its address; saves a look-up for each of them."""
        self._pending: dict[int, _Pending] = {}

    def apply(self, events: Events, *, in_order: bool = True) -> None:
        """Applies records of ``ring.RECORD_DTYPE`` in their order.

        ``in_order``: no others are missing that came between them, and they are in the order
        of time; without it what depends on that is counted as unknown.
        """
        for start in range(0, len(events), CHUNK):
            self._apply_chunk(events[start : start + CHUNK], in_order=in_order)
        self.totals.note_peaks()
        if len(events):
            self.cohorts.note_floor(self.totals.live_bytes)

    def fork(self) -> LiveTable:
        """What a child process holds that has a copy of the memory: the same blocks.

        What came and went before is not the child's.
        """
        child = LiveTable(self.stacks, self.totals.sample_bytes, self.lives.soon, self)
        child.lives.inherit(self._newest_ns)
        child.trusting = self.trusting
        return child

    def apply_pairs(self, pairs: Columns) -> None:
        """Counts blocks that came and went, of ``drain.PAIR_DTYPE``: only totals change."""
        if len(pairs):
            stack = self.stacks.indices(pairs["stack_id"])
            self.totals.grow(len(self.stacks))
            passed = self.totals.pass_by(
                stack, pairs["size"], pairs["count"], pairs["bytes"], pairs["time_ns"]
            )
            self.lives.pass_by(*passed)
            self.cohorts.grow(len(self.totals))
            self.cohorts.advance(int(pairs["time_ns"].max()), self.totals.live_bytes)
            self.cohorts.bear(stack, pairs["time_ns"], pairs["count"])
            self.events += 2 * int(pairs["count"].sum())

    def _apply_chunk(self, events: Events, *, in_order: bool) -> None:
        chunk = Chunk(events, self.stacks, in_order=in_order)
        born = chunk.made
        self.totals.grow(len(self.stacks))
        self.cohorts.grow(len(self.totals))
        self._newest_ns = int(chunk.time_ns.max())
        self.cohorts.advance(self._newest_ns, self.totals.live_bytes)
        birth_ns = chunk.time_ns.take(born)
        self.cohorts.bear(chunk.made_stack, birth_ns)
        made = self.totals.allocate(
            chunk.made_stack, chunk.size.take(born), birth_ns, in_order=not chunk.has_late
        )
        order, address = _by_address(chunk.address)
        if len(born) < len(chunk):
            kept = self._settle_restores(order, chunk)
            if kept is not None:
                order, address = order[kept], address[kept]
        taken, pairs = self._settle(order, address, chunk, made)
        ends = ends_of(chunk, pairs, (taken.rows[taken.found], taken.blocks))
        temporary = self.lives.note(chunk, ends)
        self._note_pending(order, chunk, taken, ends.row[temporary])
        self.events += len(events)

    def _settle_restores(self, order: Rows, chunk: Chunk) -> npt.NDArray[np.bool_] | None:
        """Undoes failed reallocs. Returns which of the order are left, None for all.

        Nothing can happen to a block between a realloc's taking it and giving it back,
        so within a batch the two stand next to each other and cancel. Where the taking
        was in an earlier batch, the restore becomes an allocation of the old block.
        """
        kind, caller = chunk.kind, chunk.caller
        restores = np.flatnonzero(kind == EventKind.RESTORE)
        kept = None
        if len(restores):
            settled = np.zeros(len(kind), np.bool_)
            sorted_kind, address = kind[order], chunk.address[order]
            second = np.flatnonzero(
                (sorted_kind[1:] == EventKind.RESTORE)
                & (sorted_kind[:-1] == EventKind.REALLOC_FREE)
                & (address[1:] == address[:-1])
            )
            settled[order[second]] = settled[order[second + 1]] = True
            for row in restores[~settled[restores]].tolist():
                settled[row] = not self._give_back(row, int(caller[row]), chunk)
                kind[row] = EventKind.ALLOC
            kept = ~settled[order]
        if self._pending:
            # A thread that reports anything else has finished its realloc.
            for tid in set(self._pending).intersection(np.unique(caller).tolist()):
                del self._pending[tid]
        return kept

    def _give_back(self, row: int, tid: int, chunk: Chunk) -> bool:
        """Turns a restore into an allocation of the old block; False if there is none."""
        pending = self._pending.pop(tid, None)
        if pending is None or pending.address != int(chunk.address[row]):
            self.oddities.odd_restores += 1
            return False
        block = pending.block
        if block is None:
            self.oddities.unmatched_frees -= 1
            self.cohorts.note_strangers(-1)
            return False
        chunk.restored[row] = block
        self.totals.free(block.stack, block.size, sign=-1)
        self.lives.take_back(block, tid, temporary=pending.was_temporary)
        self._count_deaths(block, np.array([pending.time_ns], np.uint64), sign=-1)
        return True

    def _count_deaths(self, blocks: Blocks, death_ns: U64, sign: int = 1) -> None:
        life_ns = death_ns.astype(np.int64) - blocks.birth_ns.astype(np.int64)
        self.cohorts.note_lifetimes(blocks.stack, life_ns, sign)

    def _count_alive(self, blocks: Blocks, sign: int) -> None:
        size_bytes = self.totals.bytes_of(blocks.size)
        self.cohorts.keep(blocks.stack, size_bytes, blocks.birth_ns, sign)

    def _settle(
        self, order: Rows, address: U64, chunk: Chunk, made: Sums
    ) -> tuple[_Taken, tuple[Rows, Rows]]:
        """Matches allocations and frees. ``made``: what the batch allocated, per stack.

        Returns which frees took what from the table, and the rows that made a block in the
        batch and those that ended it.
        """
        alloc = chunk.kind.take(order) == EventKind.ALLOC
        same = address[1:] == address[:-1]
        first = np.append(True, ~same)
        after_alloc = same & alloc[:-1]
        second = np.flatnonzero(after_alloc & ~alloc[1:])
        # Two frees, or two allocations, in a row on one address.
        self.oddities.address_reuses += int(np.count_nonzero(after_alloc & alloc[1:]))
        repeated_frees = np.flatnonzero(same & ~(alloc[:-1] | alloc[1:])) + 1

        first_frees = order.take(np.flatnonzero(first & ~alloc))
        found, taken = self.blocks.take(chunk.address.take(first_frees))
        self.totals.free(taken.stack, taken.size)
        self._count_alive(taken, -1)
        self._count_deaths(taken, chunk.time_ns[first_frees[found]])
        # A free inside another one often is of the same block: that one has freed it.
        unmatched = chunk.kind[np.append(first_frees[~found], order[repeated_frees])]
        strangers = int(np.count_nonzero(unmatched != EventKind.INNER_FREE))
        self.oddities.unmatched_frees += strangers
        self.cohorts.note_strangers(strangers)

        last = np.append(~same, True)
        if not self.trusting:
            stale = self.blocks.take(chunk.address[order[alloc & first & ~last]])[1]
            self._close_stale(stale)
        survivors = order.take(np.flatnonzero(alloc & last))
        blocks = chunk.blocks(survivors)
        # Every block that was made here counts as freed, but for those that are left.
        self.totals.free_sums(made)
        self.totals.free(blocks.stack, blocks.size, sign=-1)
        self._count_alive(blocks, 1)
        for row, block in chunk.restored.items():
            # Not made here: freed by now, or among those that were just taken back.
            self.totals.free(block.stack, block.size)
            if not (survivors == row).any():
                self._count_deaths(block, chunk.time_ns[-1:])
        self._close_stale(self.blocks.put(blocks))
        return _Taken(first_frees, found, taken), (order.take(second), order.take(second + 1))

    def _close_stale(self, stale: Blocks) -> None:
        """Blocks whose address was handed out again: their free went unseen."""
        if len(stale):
            self.totals.free(stale.stack, stale.size)
            self._count_alive(stale, -1)
            self.oddities.address_reuses += len(stale)
            self.trusting = False

    def _note_pending(self, order: Rows, chunk: Chunk, taken: _Taken, temporary: Rows) -> None:
        """Keeps what the reallocs took that were still under way at the batch's end.

        A thread is in one realloc at most, and its taking is then its last event.
        ``temporary``: rows that ended a temporary block.
        """
        takings = np.flatnonzero(chunk.kind == EventKind.REALLOC_FREE)
        if not len(takings):
            return
        caller = chunk.caller
        thread = np.where(caller == 0, NOBODY, self.lives.threads.rows(chunk.tid))
        last_event = np.zeros(self.lives.threads.count, np.intp)
        last_event[thread] = np.arange(len(chunk))
        unfinished = takings[last_event[thread[takings]] == takings]
        for row in unfinished.tolist():
            block = taken.by(row)
            if block is None:
                at = int(np.flatnonzero(order == row)[0])
                before = order[at - 1 : at]
                if len(before) and _made(before[0], row, chunk):
                    block = chunk.blocks(before)
            self._pending[int(caller[row])] = _Pending(
                address=int(chunk.address[row]),
                block=block,
                time_ns=int(chunk.time_ns[row]),
                was_temporary=bool((temporary == row).any()),
            )


def _made(before: np.intp, row: int, chunk: Chunk) -> bool:
    """Whether the event before made the block that the one in this row is about."""
    same = chunk.address[before] == chunk.address[row]
    return bool(same and chunk.kind[before] == EventKind.ALLOC)


def _by_address(address: U64) -> tuple[Rows, U64]:
    """A stable order by address, and the addresses in it.

    Sorting numbers is several times faster than sorting indices, so the position
    within the chunk rides in the low bits, which makes the keys distinct as well.
    """
    if len(address) and int(address.max()) >> _ADDRESS_BITS:
        order = np.argsort(address, kind="stable")
        return order, address[order]
    keys = (address << _POSITION_BITS) | np.arange(len(address), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(CHUNK - 1)).astype(np.intp), keys >> _POSITION_BITS
