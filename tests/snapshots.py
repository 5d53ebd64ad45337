"""Snapshots of tables that tests have filled."""

from dataclasses import replace
from typing import Any

import numpy as np

from tracelloc.heap.heap import Heap
from tracelloc.heap.table import LiveTable
from tracelloc.model.figures import History
from tracelloc.model.losses import Counter
from tracelloc.model.process import Overhead, Target
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.snapshots.snapshot import CaptureStatus, ProcessStatus, Snapshot
from tracelloc.snapshots.taking import take_snapshot

TARGET = Target(42, "app")


def snapshot_of(
    table: LiveTable,
    now_ns: int,
    wanted: SnapshotRequest = TOTALS_ONLY,
    *,
    history: History | None = None,
    lost: dict[Counter, int] | None = None,
    time_s: float = 1_700_000_000.0,
    **process: Any,
) -> Snapshot:
    """``process``: fields of ``ProcessStatus``; ``lost``: the probes' counters."""
    heap = Heap(0, table.stacks)
    heap.table = table
    heap.history = history or History(0)
    counters = np.zeros(len(Counter), np.uint64)
    for counter, count in (lost or {}).items():
        counters[counter] = count
    status = replace(ProcessStatus(TARGET, 0, Overhead(0, None, ())), **process)
    return take_snapshot(heap, status, CaptureStatus(time_s, now_ns, counters), wanted)


def with_facets(snapshot: Snapshot, **results: Any) -> Snapshot:
    """A snapshot with results of facets, by name (``FACET_RESULTS``); None: without that one."""
    known = {**snapshot.facets, **results}
    return replace(snapshot, facets={name: one for name, one in known.items() if one is not None})
