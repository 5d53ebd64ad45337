"""Takes snapshots: copies what views need of a heap, with counts in whole blocks."""

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from tracelloc.heap.heap import Heap
from tracelloc.heap.table import NOBODY, LiveTable
from tracelloc.model.blocks import BlockSelection, block_stats
from tracelloc.model.figures import Mask, Peak, ThreadActivity, ThreadFlow, ThreadWork, Totals
from tracelloc.model.losses import Counter, LossCounts, Oddities
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.model.stacks import StackFlag
from tracelloc.snapshots.snapshot import CaptureStatus, ProcessStatus, Snapshot
from tracelloc.verdict.findings import without_falling


def take_snapshot(
    heap: Heap,
    process: ProcessStatus,
    capture: CaptureStatus,
    wanted: SnapshotRequest = TOTALS_ONLY,
) -> Snapshot:
    """Takes a snapshot: copies the parts of a heap that views need."""
    table, stacks = heap.table, heap.stacks
    now_ns = capture.now_ns
    totals = table.totals.whole(len(stacks))

    def count(of_kind: Mask) -> int:
        # Other processes may share the stacks, and use others of them.
        used = (totals.allocated_count > 0) | (totals.live_count > 0)
        return int(np.count_nonzero(used & of_kind[: len(used)]))

    top_blocks, old_blocks = _blocks(table, totals, wanted, now_ns)
    losses = replace(
        loss_counts(capture.counters, table.oddities, capture.overflows, shared=capture.is_shared),
        failed_tasks=dict(capture.failed_tasks),
    )
    growth = heap.history.growth_per_min(now_ns, totals.live_bytes)
    status = {each.name: getattr(process, each.name) for each in fields(process)}
    if process.findings is not None:
        status["findings"] = without_falling(process.findings, growth, totals.live_bytes)
    return Snapshot(
        **status,
        time_s=capture.time_s,
        now_ns=now_ns,
        totals=totals,
        growth_per_min=growth,
        stacks=stacks,
        events=table.events,
        losses=losses,
        truncated_stacks=count(stacks.have(StackFlag.TRUNCATED)),
        broken_stacks=count(stacks.have(StackFlag.BROKEN | StackFlag.UNREADABLE)),
        partial_allocations=int(totals.allocated_count[stacks.are_partial[: len(totals)]].sum()),
        unknown_stacks=count(stacks.are_unknown),
        top_blocks=top_blocks,
        old_blocks=old_blocks,
        live_history=tuple(
            (time_ns - process.started_ns, held)
            for time_ns, held in zip(*heap.history.total(), strict=True)
        ),
        blocks=table.blocks() if wanted.blocks else None,
        history=heap.history.copy(),
        peak=whole_peak(totals, table.peak, len(stacks)),
        temporary=table.temporary,
        unordered_count=totals.whole_number(table.unordered_count),
        threads=thread_activity(table, totals, process.thread_names) if wanted.threads else None,
    )


def _blocks(
    table: LiveTable, totals: Totals, wanted: SnapshotRequest, now_ns: int
) -> tuple[BlockSelection, BlockSelection | None]:
    """Returns the largest blocks, and those of the wanted age; None if no age is wanted."""
    top, min_age_ns = wanted.top, wanted.min_age_ns
    largest = largest_blocks(table, top, now_ns).largest
    count, size_bytes = int(totals.live_count.sum()), int(totals.live_bytes.sum())
    old = None
    if min_age_ns is not None:
        old = largest_blocks(table, top, now_ns, min_age_ns)
    return BlockSelection(count, size_bytes, largest), old


def largest_blocks(
    table: LiveTable, n: int, now_ns: int, min_age_ns: int | None = None
) -> BlockSelection:
    """Returns the ``n`` largest blocks that are at least ``min_age_ns`` old."""
    if n == 0 and min_age_ns is None:
        return BlockSelection(0, 0, ())
    count, size_bytes, best = table.largest(n, max(0, now_ns - (min_age_ns or 0)))
    return BlockSelection(count, size_bytes, block_stats(best, now_ns))


def loss_counts(
    counters: npt.NDArray[np.uint64], oddities: Oddities, overflows: int, *, shared: bool
) -> LossCounts:
    """Combines the probes' counters, indexed by ``Counter``, and the table's oddities."""
    return LossCounts(
        {counter: int(counters[counter]) for counter in Counter},
        Oddities(
            oddities.unmatched_frees + int(counters[Counter.SPILL_UNMATCHED]),
            oddities.address_reuses + int(counters[Counter.SPILL_REUSES]),
            oddities.odd_restores + int(counters[Counter.SPILL_ODD_RESTORES]),
        ),
        overflows,
        shared,
    )


def thread_activity(table: LiveTable, totals: Totals, names: Mapping[int, str]) -> ThreadActivity:
    """Returns threads and flows in whole blocks; ``totals`` defines the unit of counts."""
    whole, sums = totals.whole_number, table.threads()
    tids, flows = sums.tid.tolist(), []
    for_others, by_others = np.zeros((2, len(sums), 2), np.int64)
    for (maker, ender), flow in table.flows().items():
        if flow.count:
            flows.append(ThreadFlow(tids[maker], tids[ender], whole(flow.count), flow.size_bytes))
            for_others[ender] += flow.size_bytes, flow.count
            by_others[maker] += flow.size_bytes, flow.count
    own = sums.allocated_bytes, sums.allocated_count, sums.freed_bytes, sums.freed_count
    rows = np.column_stack((*own, for_others, by_others))
    rows[:, 1::2] = totals.whole_counts(rows[:, 1::2])
    threads = [
        ThreadWork(tids[at], None if at == NOBODY else names.get(tids[at]), *rows[at].tolist())
        for at in np.flatnonzero(sums.allocated_count | sums.freed_count).tolist()
    ]
    threads.sort(key=lambda thread: (-thread.allocated_bytes, thread.tid))
    flows.sort(key=lambda flow: (-flow.size_bytes, flow.maker_tid, flow.ender_tid))
    return ThreadActivity(tuple(threads), tuple(flows), names)


def whole_peak(totals: Totals, peak: Peak | None, stacks: int) -> Peak | None:
    """Returns the peak in whole blocks, for ``stacks`` stacks; 0 for later stacks."""
    if peak is None:
        return None
    live_bytes, live_count = np.zeros(stacks, np.int64), np.zeros(stacks, np.int64)
    known = min(stacks, len(peak.live_bytes))
    live_bytes[:known] = peak.live_bytes[:known]
    live_count[:known] = totals.whole_counts(peak.live_count[:known])
    return replace(peak, live_bytes=live_bytes, live_count=live_count)
