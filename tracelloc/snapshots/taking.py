"""Takes snapshots: copies what views need of a heap."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from tracelloc.heap.heap import Heap
from tracelloc.heap.history import History
from tracelloc.heap.stacks import Mask
from tracelloc.heap.table import LiveTable
from tracelloc.heap.totals import Totals
from tracelloc.model.stackflags import StackFlag
from tracelloc.model.wanted import NOTHING_ELSE, Wanted
from tracelloc.snapshots.blocks import BlockSelection, select_blocks
from tracelloc.snapshots.losses import take_losses
from tracelloc.snapshots.snapshot import CaptureStatus, ProcessStatus, Snapshot
from tracelloc.snapshots.threadactivity import activity_of, whole_peak


def take_snapshot(
    heap: Heap, process: ProcessStatus, capture: CaptureStatus, wanted: Wanted = NOTHING_ELSE
) -> Snapshot:
    """Copies what views need of a heap."""
    table, stacks = heap.table, heap.stacks
    now_ns = capture.now_ns
    totals = table.totals.whole(len(stacks))

    def count(of_kind: Mask) -> int:
        # Other processes may share the stacks, and use others of them.
        used = (totals.allocated_count > 0) | (totals.live_count > 0)
        return int(np.count_nonzero(used & of_kind[: len(used)]))

    top_blocks, old_blocks = _blocks(table, totals, wanted, now_ns)
    losses = replace(
        take_losses(capture.counters, table.oddities, capture.overflows, shared=capture.is_shared),
        failed_tasks=dict(capture.failed_tasks),
    )
    return Snapshot(
        **{each.name: getattr(process, each.name) for each in fields(process)},
        time_s=capture.time_s,
        now_ns=now_ns,
        totals=totals,
        growth_per_min=heap.history.growth_per_min(now_ns, totals.live_bytes),
        stacks=stacks,
        events=table.events,
        losses=losses,
        truncated_stacks=count(stacks.have(StackFlag.TRUNCATED)),
        broken_stacks=count(stacks.have(StackFlag.BROKEN | StackFlag.UNREADABLE)),
        partial_allocations=int(totals.allocated_count[stacks.are_partial[: len(totals)]].sum()),
        unknown_stacks=count(stacks.are_unknown),
        top_blocks=top_blocks,
        old_blocks=old_blocks,
        live_history=_live_history(heap.history, process.started_ns),
        blocks=table.blocks() if wanted.blocks else None,
        history=heap.history.copy(),
        peak=whole_peak(totals, table.peak, len(stacks)),
        temporary=table.temporary,
        unordered_count=totals.whole_number(table.unordered_count),
        threads=activity_of(table, totals, process.thread_names) if wanted.threads else None,
        logged=table.take_logged() if wanted.events else None,
    )


def _blocks(
    table: LiveTable, totals: Totals, wanted: Wanted, now_ns: int
) -> tuple[BlockSelection, BlockSelection | None]:
    """The largest of all blocks, and of those of at least the wanted age, if any."""
    top, min_age_ns = wanted.top, wanted.min_age_ns
    largest = select_blocks(table, top, now_ns).largest
    count, size_bytes = int(totals.live_count.sum()), int(totals.live_bytes.sum())
    old = None
    if min_age_ns is not None:
        old = select_blocks(table, top, now_ns, min_age_ns)
    return BlockSelection(count, size_bytes, largest), old


def _live_history(history: History, started_ns: int) -> tuple[tuple[int, int], ...]:
    return tuple(
        (time_ns - started_ns, held) for time_ns, held in zip(*history.total(), strict=True)
    )
