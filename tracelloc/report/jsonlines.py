"""The JSON report: one object per report, on one line. Sizes in bytes, times in seconds."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

from tracelloc.heap.ranges import Mappings
from tracelloc.report.sections import parts_of
from tracelloc.snapshots.blocks import BlockStat
from tracelloc.snapshots.marks import SinceMark, since_mark
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import Frame
from tracelloc.target.found import found_json
from tracelloc.units import NS_PER_S
from tracelloc.views.memory import memory_facts
from tracelloc.views.naming import NamedStack, Namer
from tracelloc.views.suspects import NamedSuspect, name_suspects, stacks_to_name, suspects_of


def json_report(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    mark: Snapshot | None = None,
    *,
    show: Set[str] = frozenset(),
) -> str:
    """One line without its end."""
    return json.dumps(report_of(snapshot, namer, top, mark, show=show), separators=(",", ":"))


def report_of(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    mark: Snapshot | None = None,
    *,
    show: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The report.

    ``top_old_allocations`` is there with an age limit only, ``since_mark`` with a mark, and
    each section of ``show`` under its own name (``sections.SECTIONS``).
    """
    parts = parts_of(snapshot, top, show)
    suspects = suspects_of(snapshot, top)
    since = since_mark(snapshot, mark, top)
    indices = snapshot.shown_stacks(top) | stacks_to_name(suspects)
    if since is not None:
        indices |= {changed.stack for changed in since.top}
    indices |= {stack for part in parts.values() for stack in part.stacks}
    namer.prepare(snapshot, indices, namer.patience_s)
    report = summary(snapshot)
    report["suspects"] = [
        json_suspect(named) | {"stack": _stack(named.stack)}
        for named in name_suspects(snapshot, namer, suspects)
    ]
    report["top_allocations"] = [_block(b, snapshot, namer) for b in snapshot.top_blocks.largest]
    report["top_allocators"] = [
        {
            "bytes": stat.live_bytes,
            "allocations": stat.live_count,
            "growth_bytes_per_min": stat.growth_bytes_per_min,
            "verdict": _verdict(snapshot, stat.index),
            "stack_id": stat.index,
            "stack": _stack(namer.stack(snapshot, stat.index)),
        }
        for stat in snapshot.top_stacks(top)
    ]
    if since is not None:
        report["since_mark"] = _since(snapshot, since, namer)
    if snapshot.mappings is not None:
        report["mappings"] = _mappings(snapshot, snapshot.mappings, namer, top)
    if snapshot.old_blocks is not None:
        report["old_bytes"] = snapshot.old_blocks.size_bytes
        report["old_allocations"] = snapshot.old_blocks.count
        report["top_old_allocations"] = [
            _block(b, snapshot, namer) for b in snapshot.old_blocks.largest
        ]
    for name, part in parts.items():
        report[name] = part.facts(lambda stack: _stack(namer.stack(snapshot, stack)))
    return report


def _mappings(snapshot: Snapshot, mappings: Mappings, namer: Namer, top: int) -> dict[str, Any]:
    return {
        "bytes": mappings.size_bytes,
        "mappings": mappings.count,
        "of_allocators_bytes": mappings.of_allocators_bytes,
        "top": [
            {
                "bytes": held.size_bytes,
                "mappings": held.count,
                "oldest_s": (snapshot.now_ns - held.oldest_ns) / NS_PER_S,
                "stack_id": held.stack,
                "stack": _stack(namer.stack(snapshot, held.stack)),
            }
            for held in mappings.stacks[:top]
        ],
    }


def _since(snapshot: Snapshot, since: SinceMark, namer: Namer) -> dict[str, Any]:
    return {
        "elapsed_s": since.elapsed_ns / NS_PER_S,
        "live_bytes": since.live_bytes,
        "live_allocations": since.live_count,
        "allocated_bytes": since.allocated_bytes,
        "freed_bytes": since.freed_bytes,
        "growing_stacks": since.growing,
        "top_allocators": [
            {
                "bytes": changed.live_bytes,
                "allocations": changed.live_count,
                "stack_id": changed.stack,
                "stack": _stack(namer.stack(snapshot, changed.stack)),
            }
            for changed in since.top
        ],
    }


def summary(snapshot: Snapshot) -> dict[str, Any]:
    """The report without its lists: figures of the whole target."""
    totals = snapshot.totals
    return {
        "time": round(snapshot.time_s, 6),
        "pid": snapshot.target.pid,
        "command": snapshot.target.command,
        "ppid": snapshot.target.parent_pid,
        "exec_count": snapshot.target.exec_count,
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
        "live_allocations_bounds": snapshot.count_bounds,
        "overflows": snapshot.losses.overflows,
        "spilled_events": snapshot.losses.spilled_events,
        "events_per_s": round(snapshot.overhead.events_per_s, 1),
        "allocators": found_json(snapshot.allocators),
        "probe_share": snapshot.overhead.probe_share,
        "dear_probes": list(snapshot.overhead.dear_probes),
        "lost": snapshot.losses.by_cause,
        "truncated_stacks": snapshot.truncated_stacks,
        "broken_stacks": snapshot.broken_stacks,
        "partial_stacks": snapshot.partial_stacks,
        "unknown_stacks": snapshot.unknown_stacks,
        "rss_bytes": snapshot.rss_bytes,
        "memory": memory_facts(snapshot),
        "growth_bytes_per_min": int(snapshot.growth_per_min.sum()),
        "suspect_count": _suspect_count(snapshot),
        "suppressed": _suppressed(snapshot),
    }


def leak_report(snapshot: Snapshot, named: NamedSuspect) -> dict[str, Any]:
    """One suspect with its stack and the figures of its process."""
    return summary(snapshot) | {"suspect": json_suspect(named) | {"stack": _stack(named.stack)}}


def json_suspect(named: NamedSuspect) -> dict[str, Any]:
    """A suspect without its stack.

    ``since_s`` is for how long it has been growing; ``group`` is null for a single stack.
    """
    judgement = named.judgement
    return {
        "stack_id": named.suspect.stack,
        "verdict": judgement.verdict.value,
        "rate_bytes_per_min": round(judgement.rate_bytes_per_min, 1),
        "since_s": round(named.since_s, 3),
        "confidence": round(judgement.confidence, 4),
        "evidence": judgement.evidence,
        "never_freed": judgement.never_freed,
        "watch_more_s": round(judgement.watch_more_s, 3),
        "taken_back": judgement.taken_back,
        "group": _group(named),
    }


def _group(named: NamedSuspect) -> dict[str, Any] | None:
    members = named.suspect.members
    if len(members) == 1:
        return None
    return {
        "frame": None if named.shared is None else _frame(named.shared),
        "callers": [{"name": c.name, "share": round(c.share, 4)} for c in named.callers],
        "callees": [{"name": c.name, "share": round(c.share, 4)} for c in named.callees],
        "stacks": [
            {
                "stack_id": member.stack,
                "share": round(member.share, 4),
                "rate_bytes_per_min": round(member.rate_bytes_per_min, 1),
            }
            for member in members
        ],
    }


def _suppressed(snapshot: Snapshot) -> dict[str, Any] | None:
    suppressed = None if snapshot.findings is None else snapshot.findings.suppressed
    if suppressed is None:
        return None
    return {
        "stacks": suppressed.stacks,
        "rate_bytes_per_min": round(suppressed.rate_bytes_per_min, 1),
        "live_bytes": suppressed.live_bytes,
    }


def _verdict(snapshot: Snapshot, stack: int) -> str | None:
    return None if snapshot.findings is None else snapshot.findings.verdict(stack).value


def _suspect_count(snapshot: Snapshot) -> int | None:
    findings = snapshot.findings
    return None if findings is None else len(findings.suspects) + findings.suspects_left_out


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
        _frame(frame) | {"filtered": hidden, "label": label}
        for frame, hidden, label in zip(stack.frames, stack.hidden, stack.all_labels, strict=True)
    ]


def _frame(frame: Frame) -> dict[str, Any]:
    return {
        "address": frame.address,
        "symbol": frame.symbol,
        "offset": frame.offset,
        "size": frame.size,
        "module": frame.module,
        "file": frame.file,
        "line": frame.line,
        "inlined": frame.inlined,
        "reason": frame.reason.value if frame.reason is not None else None,
    }
