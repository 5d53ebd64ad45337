"""The JSON report: one object per report, on one line. Sizes in bytes, times in seconds."""

from __future__ import annotations

import json
from typing import Any

from tracelloc.abi import Counter
from tracelloc.snapshot import BlockStat, Snapshot
from tracelloc.units import NS_PER_S
from tracelloc.view import REPORT_PATIENCE_S, NamedStack, Namer


def json_report(snapshot: Snapshot, namer: Namer, top: int) -> str:
    """One line without its end. ``top_old_allocations`` is there with an age limit only."""
    namer.prepare(snapshot, snapshot.shown_stacks(top), REPORT_PATIENCE_S)
    report = summary(snapshot)
    report["top_allocations"] = [_block(b, snapshot, namer) for b in snapshot.top_blocks.largest]
    report["top_allocators"] = [
        {
            "bytes": stat.live_bytes,
            "allocations": stat.live_count,
            "growth_bytes_per_min": stat.growth_bytes_per_min,
            "stack_id": stat.index,
            "stack": _stack(namer.stack(snapshot, stat.index)),
        }
        for stat in snapshot.top_stacks(top)
    ]
    if snapshot.old_blocks is not None:
        report["old_bytes"] = snapshot.old_blocks.size_bytes
        report["old_allocations"] = snapshot.old_blocks.count
        report["top_old_allocations"] = [
            _block(b, snapshot, namer) for b in snapshot.old_blocks.largest
        ]
    return json.dumps(report, separators=(",", ":"))


def summary(snapshot: Snapshot) -> dict[str, Any]:
    """The report without its lists: figures of the whole target."""
    totals = snapshot.totals
    return {
        "time": round(snapshot.time_s, 6),
        "pid": snapshot.target.pid,
        "command": snapshot.target.command,
        "elapsed_s": snapshot.elapsed_ns / NS_PER_S,
        "sample_bytes": snapshot.sample_bytes,
        "live_bytes": snapshot.live_bytes,
        "live_allocations": snapshot.live_count,
        "live_stacks": snapshot.live_stacks,
        "allocated_bytes": int(totals.allocated_bytes.sum()),
        "allocations": int(totals.allocated_count.sum()),
        "freed_bytes": int(totals.freed_bytes.sum()),
        "frees": int(totals.freed_count.sum()),
        "unmatched_frees": snapshot.losses.oddities.unmatched_frees,
        "lost_events": snapshot.losses.events,
        "spilled_events": snapshot.losses.counters[Counter.SPILLED],
        "events_per_s": round(snapshot.overhead.events_per_s, 1),
        "probe_share": snapshot.overhead.probe_share,
        "dear_probes": list(snapshot.overhead.dear_probes),
        "lost": snapshot.losses.by_cause,
        "truncated_stacks": snapshot.truncated_stacks,
        "broken_stacks": snapshot.broken_stacks,
        "partial_stacks": snapshot.partial_stacks,
        "unknown_stacks": snapshot.unknown_stacks,
        "rss_bytes": snapshot.rss_bytes,
        "growth_bytes_per_min": int(snapshot.growth_per_min.sum()),
    }


def _block(block: BlockStat, snapshot: Snapshot, namer: Namer) -> dict[str, Any]:
    return {
        "address": block.address,
        "size_bytes": block.size_bytes,
        "age_s": block.age_ns / NS_PER_S,
        "stack_id": block.stack,
        "stack": _stack(namer.stack(snapshot, block.stack)),
    }


def _stack(stack: NamedStack) -> list[dict[str, Any]]:
    return [
        {
            "address": frame.address,
            "symbol": frame.symbol,
            "offset": frame.offset,
            "size": frame.size,
            "module": frame.module,
            "file": frame.file,
            "line": frame.line,
            "inlined": frame.inlined,
            "filtered": hidden,
            "label": label,
            "reason": frame.reason.value if frame.reason is not None else None,
        }
        for frame, hidden, label in zip(stack.frames, stack.hidden, stack.all_labels, strict=True)
    ]
