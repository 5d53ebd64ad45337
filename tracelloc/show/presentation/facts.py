"""Snapshots, suspects and stacks as JSON values (bytes, seconds), and stacks as lines of text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tracelloc.model.codefiles import Unresolved, base_name
from tracelloc.model.figures import ThreadActivity
from tracelloc.model.frames import Frame
from tracelloc.model.process import FoundLibrary
from tracelloc.model.stacks import NO_STACK
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.alerts import completeness_facts, tracing_cost
from tracelloc.show.presentation.blockholders import holders_facts
from tracelloc.show.presentation.naming import where
from tracelloc.show.presentation.processfacts import memory_facts
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.show.presentation.suspects import NamedSuspect, PartShare
from tracelloc.show.tables import json_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S, plural, printable

_FRAME: Final = ("address", "symbol", "offset", "size", "module", "file", "line", "inlined")
_THREADS: Final = {
    "allocated_count": "allocations", "freed_count": "frees",
    "freed_for_others_count": "frees_for_others", "freed_by_others_count": "frees_by_others",
    "maker_tid": "from_tid", "ender_tid": "to_tid", "size_bytes": "bytes", "count": "allocations",
}  # fmt: skip


def summary(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the report's figures of the whole target, without its lists."""
    totals, share = snapshot.totals, snapshot.overhead.probe_share
    cost, findings, losses = tracing_cost(snapshot), snapshot.findings, snapshot.losses
    suppressed = None if findings is None else findings.suppressed
    return {
        "time": round(snapshot.time_s, 6),
        "pid": snapshot.target.pid,
        "command": snapshot.target.command,
        "ppid": snapshot.target.parent_pid,
        "exec_count": snapshot.target.exec_count,
        "elapsed_s": round(snapshot.elapsed_ns / NS_PER_S, 3),
        "completeness": completeness_facts(snapshot),
        "sample_bytes": snapshot.sample_bytes,
        "space": snapshot.space.value,
        "live_bytes": snapshot.live_bytes,
        "live_allocations": snapshot.live_count,
        "live_stacks": snapshot.live_stacks,
        "allocated_bytes": int(totals.allocated_bytes.sum()),
        "allocations": int(totals.allocated_count.sum()),
        "freed_bytes": int(totals.freed_bytes.sum()),
        "frees": int(totals.freed_count.sum()),
        "unmatched_frees": losses.oddities.unmatched_frees,
        "lost_events": losses.events,
        "live_allocations_bounds": snapshot.count_bounds,
        "overflows": losses.overflows,
        "overflow_map_events": losses.spilled_events,
        "events_per_s": round(snapshot.overhead.events_per_s, 1),
        "malloc_libraries": found_json(snapshot.allocators),
        "probe_share": None if share is None else round(share, 4),
        "probe_cores": None if cost is None else round(cost.cores, 4),
        "slow_probes": list(snapshot.overhead.slow_probes),
        "lost": losses.by_cause,
        "failed_tasks": [
            {"task": task, "count": count} for task, count in losses.failed_tasks.items()
        ],
        "truncated_stacks": snapshot.truncated_stacks,
        "broken_stacks": snapshot.broken_stacks,
        "unsure_stacks": snapshot.unsure_stacks,
        "partial_allocations": snapshot.partial_allocations,
        "unknown_stacks": snapshot.unknown_stacks,
        "rss_bytes": snapshot.rss_bytes,
        "memory": memory_facts(snapshot),
        "growth_bytes_per_min": int(snapshot.growth_per_min.sum()),
        "suspect_count": findings and len(findings.suspects) + findings.suspects_left_out,
        "suppressed": suppressed
        and {**json_of(suppressed), "rate_bytes_per_min": round(suppressed.rate_bytes_per_min, 1)},
    }


def suspect_facts(named: NamedSuspect) -> dict[str, Any]:
    """Returns a suspect as JSON values, without its stack; ``group`` is null for a single stack."""
    judgement, holders = named.judgement, named.holders
    return {
        "stack_id": named.suspect.stack, "verdict": judgement.verdict.value,
        "rate_bytes_per_min": round(judgement.rate_bytes_per_min, 1),
        "since_s": round(named.since_s, 3), "confidence": round(judgement.confidence, 4),
        "evidence": judgement.evidence, "never_freed": judgement.never_freed,
        "verdict_in_s": round(judgement.verdict_in_s, 3), "retracted": judgement.retracted,
        "searched_blocks": judgement.searched, "unreachable_blocks": judgement.unreachable,
        "group": _group(named),
        "holders": holders and {"time": holders.heap.time_s, **holders_facts(holders, "retained")},
    }  # fmt: skip


def _group(named: NamedSuspect) -> dict[str, Any] | None:
    members, shared = named.suspect.members, named.shared
    if len(members) == 1:
        return None
    return {
        "frame": None if shared is None else frame_facts(shared.frame),
        "callers": [] if shared is None else _shares(shared.callers),
        "callees": [] if shared is None else _shares(shared.callees),
        "lines": [] if shared is None else _shares(shared.lines, "line"),
        "stacks": [
            {
                "stack_id": member.stack,
                "share": round(member.share, 4),
                "rate_bytes_per_min": round(member.rate_bytes_per_min, 1),
            }
            for member in members
        ],
    }


def _shares(parts: Sequence[PartShare], key: str = "name") -> list[dict[str, Any]]:
    return [{key: part.name, "share": round(part.share, 4)} for part in parts]


def stack_facts(stack: NamedStack) -> list[dict[str, Any]]:
    """Returns the frames of a stack as JSON values, innermost first."""
    frames = zip(stack.frames, stack.hidden, stack.all_labels, strict=True)
    return [frame_facts(frame) | {"hidden": off, "label": label} for frame, off, label in frames]


def frame_facts(frame: Frame, attributes: Sequence[str] = _FRAME) -> dict[str, Any]:
    """Returns attributes of a frame by name, and the reason if some are unknown."""
    reason = frame.reason and frame.reason.value
    return {name: getattr(frame, name) for name in attributes} | {"reason": reason}


def peak_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the high-water mark of live bytes and its time; zeros before any allocation."""
    peak = snapshot.peak
    if peak is None:
        return {"bytes": 0, "allocations": 0, "ago_s": 0.0, "stacks": 0}
    return {
        "bytes": peak.size_bytes,
        "allocations": int(peak.live_count.sum()),
        "ago_s": max(0, snapshot.now_ns - peak.time_ns) / NS_PER_S,
        "stacks": int(np.count_nonzero(peak.live_bytes)),
    }


def temporary_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the figures of temporary allocations, which their own thread freed at once."""
    totals, policy = snapshot.totals, snapshot.temporary
    return {
        "allocations": int(totals.temporary_count.sum()),
        "bytes": int(totals.temporary_bytes.sum()),
        "unknown_allocations": snapshot.unordered_count,
        "most_between": policy.between if policy.life_ns is None else None,
        "most_s": None if policy.life_ns is None else policy.life_ns / NS_PER_S,
        "stacks": int(np.count_nonzero(totals.temporary_count)),
    }


def thread_facts(activity: ThreadActivity) -> dict[str, Any]:
    """Returns all threads and flows. ``tid`` is 0 for blocks without a known thread."""
    return {
        "remote_freed_bytes": activity.remote_freed_bytes,
        "remote_freed_allocations": activity.remote_freed_count,
        "remote_share": round(activity.remote_share, 6),
        "threads": [json_of(thread, _THREADS) for thread in activity.threads],
        "flows": [json_of(flow, _THREADS) for flow in activity.flows],
    }


def target_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the summary with the peak, temporary allocations and, if known, threads."""
    threads = {} if snapshot.threads is None else {"threads": thread_facts(snapshot.threads)}
    more = {"peak": peak_facts(snapshot), "temporary": temporary_facts(snapshot), **threads}
    return summary(snapshot) | more


def stack_lines(stack: NamedStack, index: int) -> Iterator[str]:
    """Yields the lines of a stack, innermost frame first; hidden runs as a count."""
    if not stack.frames:
        reason = "could not be taken" if index == NO_STACK else "was lost"
        yield f"        [the call stack {reason}]"
        return
    for part in stack.parts():
        if part.frame is None:
            yield f"         ({plural(part.count, 'frame')} hidden)"
            continue
        if part.label is None:
            text = format_frame(part.frame, is_short=True)
        else:
            text = f"[{printable(part.label)}] ({plural(part.count, 'frame')})"
        # A placeholder for missing frames has no address.
        address = f"0x{part.frame.address:016x}: " if part.frame.address else ""
        yield f"        {address}{text}"


def format_frame(frame: Frame, *, is_short: bool = False) -> str:
    """Formats a frame: ``name+0x32/0x76 in FILE (file:line)``; the name is whole or short.

    An unknown name is ``???``; an unknown file is replaced by the reason.
    Inlined functions have no offset: ``name [inlined] in FILE (file:line)``.
    """
    if frame.symbol is not None:
        name = printable(shorten(frame.symbol) if is_short else frame.symbol)
        if frame.offset is not None:
            name += f"+0x{frame.offset:x}"
            name += f"/0x{frame.size:x}" if frame.size is not None else ""
        elif frame.inlined:
            name += " [inlined]"
    else:
        name = "naming…" if frame.reason is Unresolved.PENDING else "???"
    if frame.reason is not None and (not frame.module or frame.reason is Unresolved.UNREAD):
        name += f" [{frame.reason.value}]"
    return name + where(frame)


_MOST_NAMES: Final = 3  # Most function names in a line, for each reason


def found_lines(found: Sequence[FoundLibrary]) -> Iterator[str]:
    """Yields a line on the traced libraries, and one per reason why functions are not probed."""
    counted = ((one, plural(len(one.functions), "function")) for one in found if one.functions)
    traced = [f"{one.family} in {one.file} ({count})" for one, count in counted]
    if traced:
        yield f"malloc libraries: {printable(', '.join(traced))}"
    yield from (f"not probed: {line}" for line in unseen_lines(found))


def unseen_lines(found: Iterable[FoundLibrary]) -> Iterator[str]:
    """Yields a line on functions that are not traced, for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for allocator in found:
        for unseen in allocator.not_probed:
            reasons.setdefault((allocator.file, unseen.reason), []).append(unseen.name)
    for (file, reason), names in reasons.items():
        more = len(names) - _MOST_NAMES
        shown = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        yield printable(f"{shown} in {base_name(file)}: {reason}")


def found_json(found: Iterable[FoundLibrary]) -> list[dict[str, Any]]:
    """Returns the traced libraries as JSON values."""
    return [json_of(each, {"family": "name", "library": None, "space": None}) for each in found]
