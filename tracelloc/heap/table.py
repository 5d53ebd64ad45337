"""The live table: applies events to the outstanding blocks and the totals.

Events come in the order of the ring, which for one address is the order in which they happened
(see ``probes/heap.bpf.c``). The compiled core applies them one by one; this module provides its
arrays, and makes room in them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, fields
from tracelloc.heap import core
from tracelloc.heap.cohorts import SHORTEST_NS, Cohorts
from tracelloc.heap.sampling import GIVEN, weighed_blocks
from tracelloc.heap.stacks import StackNumbers, Stacks
from tracelloc.model.blocks import Blocks, BlockSum
from tracelloc.model.events import Events
from tracelloc.model.figures import COLUMNS, I64, U32, U64, Mask, Peak, Totals
from tracelloc.model.losses import Oddities
from tracelloc.model.process import DEFAULT_POLICY, TemporaryPolicy

NOBODY: Final = 0  # The row of events without a known order, and of threads beyond the most
MOST_THREADS: Final = 1 << 16
MOST_FLOWS: Final = 1 << 14  # Most pairs of threads; further flows count as from and to `NOBODY`


@dataclass(slots=True)
class ThreadTotals:
    """Totals per thread: one array per figure. Bytes are as requested, counts are blocks.

    The sums over all threads equal those over all stacks: what can't be assigned to a thread counts
    in the first row. (Stale blocks, whose address was allocated again, are freed by ``NOBODY``.) If
    the kernel reuses a thread id, the figures of both threads are added up.
    """

    tid: I64  # Thread ids; 0 in the first row, which is of unknown threads
    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64  # Bytes that the thread freed, whichever thread allocated them
    freed_count: I64  # Blocks that the thread freed, whichever thread allocated them

    def __len__(self) -> int:
        return len(self.tid)


FIGURES: Final = len(fields(ThreadTotals))


Columns = npt.NDArray[Any]  # A structured array

_AT_ONCE: Final = 1 << 16  # Most events that are applied with the same newest slice of the cohorts
_NO_TIME: Final = -1
_MOST: Final = (1 << 64) - 1  # Larger than any time and any size
_LEAST_SOME: Final = 64  # Least number of blocks for which there is room in one copy
_LEAST_COPIED: Final = 4096  # Least number of blocks copied at once when searching for the largest


class LiveTable:
    """Outstanding blocks, totals per stack, cohorts and threads. Not thread safe."""

    def __init__(
        self,
        stacks: Stacks | StackNumbers,
        sample_bytes: int | None = None,
        temporary: TemporaryPolicy = DEFAULT_POLICY,
        like: LiveTable | None = None,
    ) -> None:
        """``sample_bytes``: mean distance of samples; None: every block is reported.

        ``GIVEN``: the program has sampled, and each block has a weight. ``temporary``: which blocks
        count as temporary. ``like``: the table of the process from which this one was forked.
        """
        self.stacks = stacks
        self.temporary = temporary
        self.events = 0  # Events applied since the start
        self._newest_ns = 0
        if like is None:
            self.totals = Totals.empty(max(len(stacks), 1), sample_bytes)
            self.cohorts = Cohorts()
            soon_ns = _NO_TIME if temporary.life_ns is None else temporary.life_ns
            mean = 0 if sample_bytes is None else sample_bytes or -1  # -1: blocks have weights
            self._core = core.Core(
                stacks.ids, mean, temporary.between, soon_ns,
                MOST_THREADS, MOST_FLOWS, SHORTEST_NS,
            )  # fmt: skip
        else:
            self.totals = like.totals.fork()
            self.cohorts = like.cohorts.fork()
            held = int(self.totals.live_bytes.sum())
            self._core = like._core.fork(stacks.ids, held, like._newest_ns)
            self._core.inherit(int(self.totals.live_count.sum()), held)
        self.cohorts.unfinished = self._core.unfinished
        self._is_watching = False
        self._watches_all = True
        self._bound_stacks = 0
        self._bound_version = 0

    def apply(self, events: Events, *, in_order: bool = True, by_time: bool = False) -> None:
        """Applies events (records of ``EVENT_DTYPE``) in their order.

        ``in_order``: no events are missing in between, and each thread's events are in order;
        otherwise, figures that depend on order are counted as unknown. ``by_time``: times only
        grow, and no event is a late one.
        """
        if self._is_watching and len(events):
            self._core.note_addresses(events.view(np.uint8))
        for start in range(0, len(events), _AT_ONCE):
            some = events[start : start + _AT_ONCE]
            records = some.view(np.uint8)
            if by_time:
                newest_ns, has_late = int(some["time_ns"][-1]), False
            else:
                newest_ns, has_late = self._core.survey(records)
            ordered = in_order and not has_late
            self._newest_ns = newest_ns
            self._begin(newest_ns)
            run = partial(self._core.run, records, in_order=ordered, late=has_late)
            self._apply_all(run, some["stack_id"])
            self._core.end_batch(ordered, int(some["time_ns"][-1]))
        self.events += len(events)

    def apply_pairs(self, pairs: Columns) -> None:
        """Counts blocks that were allocated and freed (``PAIR_DTYPE``): only totals change."""
        if len(pairs):
            self._watches_all = False
            records = pairs.view(np.uint8)
            self._begin(int(pairs["time_ns"].max()))
            self._apply_all(partial(self._core.pass_by, records), pairs["stack_id"])
            self.events += 2 * int(pairs["count"].sum())

    def watch_addresses(self, *, watch: bool) -> None:
        """Begins or ends recording the addresses of events, for ``add_earlier``."""
        self._core.watch(watch)
        self._is_watching, self._watches_all = watch, True

    @property
    def watched_count(self) -> int | None:
        """Number of addresses in events since ``watch_addresses``; None if pairs hide some."""
        return self._core.watched_count if self._watches_all else None

    def are_watched(self, addresses: U64) -> Mask:
        """Returns a mask of the addresses that events had since ``watch_addresses``."""
        found = np.empty(len(addresses), np.uint8)
        self._core.find_watched(addresses, found)
        return found.view(np.bool_)

    def add_earlier(self, addresses: U64, sizes: U64, stacks: U32) -> Mask:
        """Adds blocks that existed when tracing began, with the indices of their stacks.

        The blocks count as allocated since the start, as a forked child's inherited ones do, but
        no thread has allocated them. Blocks that are live or watched are left out. Returns which
        blocks were added.
        """
        began_ns = self.cohorts.start_ns or 0
        now_ns = max(self._newest_ns, began_ns)
        self._begin(now_ns)
        added = np.zeros(len(addresses), np.uint8)
        done = 0
        while (
            done := self._core.add_earlier(addresses, sizes, stacks, added, done, began_ns)
        ) < len(addresses):
            self._meet_need()
        self._core.end_batch(False, now_ns)
        return added.view(np.bool_)

    def stacks_at(self, addresses: U64) -> I64:
        """Returns the index of the stack that allocated each live block; -1: no block there."""
        stacks = np.empty(len(addresses), np.int64)
        self._core.stacks_at(addresses, stacks)
        return stacks

    def explain_frees(self) -> None:
        """Resets the count of unmatched frees, which were all of blocks from before tracing."""
        self._begin(max(self._newest_ns, self.cohorts.start_ns or 0))
        self._core.explain_frees()

    def fork(self) -> LiveTable:
        return LiveTable(self.stacks, self.totals.sample_bytes, self.temporary, self)

    def drop_blocks(self) -> None:
        self._core.forget_blocks()

    def _begin(self, now_ns: int) -> None:
        self._make_room()
        self.cohorts.advance(now_ns, self.totals)
        if self._bound_version != self.cohorts.version:
            self._bound_version = self.cohorts.version
            self._core.bind_slices(*self.cohorts.slices())

    def _make_room(self) -> None:
        self.totals.grow(len(self.stacks))
        self.cohorts.grow(len(self.totals))
        if self._bound_stacks != len(self.totals):
            self._bound_stacks = len(self.totals)
            self._core.bind_figures([getattr(self.totals, name) for name in COLUMNS])

    def _apply_all(
        self, apply_from: Callable[[int], int], stack_ids: npt.NDArray[np.uint64]
    ) -> None:
        """Repeats until all records are applied, making room where it is lacking."""
        done = 0
        while (done := apply_from(done)) < len(stack_ids):
            if self._core.need == core.NEED_STACK:
                self.stacks.indices(stack_ids[done:])
                self._make_room()
            else:
                self._meet_need()

    def _meet_need(self) -> None:
        need = self._core.need
        if need == core.NEED_ROOM:
            self._make_room()
        elif need == core.NEED_ROW:
            row = self._core.missing_row
            self._core.bind_row(row, self.cohorts.row(row))
        else:
            raise MemoryError("no memory for more blocks")

    # For readers.

    @property
    def count(self) -> int:
        return self._core.count

    @property
    def live_bytes(self) -> int:
        return self._core.held

    @property
    def oddities(self) -> Oddities:
        return Oddities(self._core.unmatched, self._core.reuses, self._core.odd_restores)

    @property
    def unordered_count(self) -> int:
        """Freed blocks, or parts of samples, that may be temporary: their order is unknown."""
        return self._core.unordered

    @property
    def peak(self) -> Peak | None:
        """Returns the high-water mark of live bytes; None before the first event."""
        size_bytes = self._core.peak_bytes
        if size_bytes is None:
            return None
        count, size = np.zeros((2, len(self.totals)), np.int64)
        self._core.gains(count, size)
        live_bytes, live_count = self.totals.live_bytes - size, self.totals.live_count - count
        return Peak(self._core.peak_ns, size_bytes, live_bytes, live_count)

    def blocks(self) -> Blocks:
        return self._told_apart(self.raw_blocks())

    def raw_blocks(self) -> Blocks:
        """Returns all blocks with sizes as in events, which include weights if reported."""
        blocks = Blocks.empty(self.count)
        _, count, *_ = self._core.copy_blocks(0, _MOST, 0, True, *blocks.columns())
        return blocks.select(slice(count))

    def _told_apart(self, raw: Blocks) -> Blocks:
        return weighed_blocks(raw) if self.totals.sample_bytes == GIVEN else raw

    def some_blocks(self, at: int, born_by_ns: int, most: int) -> tuple[int | None, Blocks]:
        """Returns the slot to go on from (None: done), and blocks allocated by ``born_by_ns``.

        Blocks that move between two calls may be returned twice or not at all.
        """
        blocks = Blocks.empty(max(most, _LEAST_SOME))
        at, count, *_ = self._core.copy_blocks(at, born_by_ns, 0, True, *blocks.columns())
        return (at if at < self._core.room else None), self._told_apart(blocks.select(slice(count)))

    def largest(self, n: int, born_by_ns: int = _MOST) -> tuple[int, int, Blocks]:
        """Returns count, bytes, and the ``n`` largest, of the blocks allocated by ``born_by_ns``.

        Blocks from before tracing are counted, not listed: they have no stack. The number and bytes
        are estimates if blocks are sampled.
        """
        best = Blocks.empty()
        at = parts = size_bytes = least = 0
        while at < self._core.room:
            some = Blocks.empty(max(_LEAST_COPIED, 4 * n))
            at, count, *more = self._core.copy_blocks(at, born_by_ns, least, False, *some.columns())
            parts, size_bytes = parts + more[0], size_bytes + more[1]
            best = Blocks.concatenate([best, some.select(slice(count))]).largest(n)
            if len(best) == n:
                least = int(best.size[-1]) if n else _MOST  # Smaller ones need not be copied
        return self.totals.whole_number(parts), size_bytes, self._told_apart(best)

    def threads(self) -> ThreadTotals:
        rows = np.zeros((self._core.thread_count, FIGURES), np.int64)
        self._core.thread_rows(rows)
        return ThreadTotals(*rows.T)

    def flows(self) -> dict[tuple[int, int], BlockSum]:
        """Blocks (in ``COUNT_PARTS``) by rows of (allocating, freeing) thread."""
        return {(maker, ender): BlockSum(*sums) for maker, ender, *sums in self._core.flow_rows()}
