"""How much memory does the live table take per block, and how fast is it read?

Runs in a process of its own, so that the peak of resident memory is its own as well:
``python -m tests.bench.capacity`` prints one JSON object.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.snapshots import snapshot_of
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind, Events
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.stacks import StackFlag

BLOCKS = 10_000_000
BATCH_EVENTS = 1 << 16
STACKS = 1000
MIN_AGE_NS = 1_000_000
SLOT_BYTES = 32  # Bytes of a slot in the hash table of blocks
ROUNDS = 5


def _peak_rss_bytes() -> int:
    """The peak since exec; getrusage(2) would include what the parent had before it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[1]) * 1024


def _batch(first: int, count: int, order: np.random.Generator) -> Events:
    """Allocations of ``count`` blocks, in a random order within their stretch of memory."""
    events = np.zeros(count, EVENT_DTYPE)
    number = first + order.permutation(count).astype(np.uint64)
    events["address"] = 0x7F00_0000_0000 + number * 512
    size = 16 + order.integers(0, 400, count, dtype=np.uint64)
    events["size_tag"] = size | np.uint64(EventKind.ALLOC << EVENT_SIZE_BITS)
    events["stack_id"] = 1 + order.integers(0, STACKS, count, dtype=np.uint64)
    events["time_ns"] = first + np.arange(count, dtype=np.uint64)
    events["tid"] = events["image"] = 1000
    return events


def _filled(blocks: int) -> tuple[LiveTable, float]:
    """A table with that many blocks, and the seconds it took to apply their events."""
    stacks = Stacks()
    for stack_id in range(1, STACKS + 1):
        stacks.add(stack_id, (0x400000 + stack_id, 0x401000), StackFlag(0))
    table = LiveTable(stacks)
    order = np.random.default_rng(1)
    took_s = 0.0
    for first in range(0, blocks, BATCH_EVENTS):
        events = _batch(first, min(BATCH_EVENTS, blocks - first), order)
        began_s = time.perf_counter()
        table.apply(events)
        took_s += time.perf_counter() - began_s
    assert table.count == blocks
    return table, took_s


def _snapshot_s(table: LiveTable, now_ns: int) -> float:
    began_s = time.perf_counter()
    snapshot = snapshot_of(table, now_ns, SnapshotRequest(10, MIN_AGE_NS))
    took_s = time.perf_counter() - began_s
    assert len(snapshot.top_blocks.largest) == 10
    assert snapshot.old_blocks.count
    return took_s


def measure(blocks: int = BLOCKS) -> dict[str, Any]:
    _filled(BATCH_EVENTS)
    peak_before_bytes = _peak_rss_bytes()
    table, apply_s = _filled(blocks)
    fill_peak_bytes = _peak_rss_bytes()
    snapshots_s = [_snapshot_s(table, blocks + MIN_AGE_NS // 2) for _ in range(ROUNDS)]
    return {
        "blocks": blocks,
        "column_bytes_per_block": SLOT_BYTES * table._core.room / blocks,
        "peak_rss_growth_bytes_per_block": (fill_peak_bytes - peak_before_bytes) / blocks,
        "peak_rss_growth_with_snapshot_bytes_per_block": (_peak_rss_bytes() - peak_before_bytes)
        / blocks,
        "apply_events_per_s": blocks / apply_s,
        "snapshot_s": sorted(snapshots_s)[ROUNDS // 2],
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
