"""The measuring window of figures, if ``--max-overhead`` detaches the probes in between."""

from __future__ import annotations

from typing import Any

from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S, format_duration, format_percent


def window_sentence(snapshot: Snapshot) -> str | None:
    """Formats the time span that figures cover; None if tracing was continuous."""
    window = snapshot.window
    if window is None:
        return None
    share = format_percent(window.traced_share)
    total, limit = _duration(window.total_ns), format_percent(window.max_overhead)
    return (
        f"{window_words(snapshot)}: all figures are of that time, live blocks were allocated in it "
        f"and not freed by its end; {share} of {total} was traced, to keep the overhead below "
        f"{limit} (--max-overhead)"
    )


def window_words(snapshot: Snapshot) -> str:
    """Formats ``window 3 of 2.1 s, ended 15 s ago, probes off``; empty if continuous."""
    window = snapshot.window
    if window is None:
        return ""
    words = f"window {window.number} of {_duration(snapshot.elapsed_ns)}"
    if window.ended_ago_ns is None:
        return f"{words} until now"
    probes = "in place again" if window.is_traced_now else "off"
    return f"{words}, ended {_duration(window.ended_ago_ns)} ago, probes {probes}"


def window_facts(snapshot: Snapshot) -> dict[str, Any] | None:
    """The window for JSON; None as in ``window_sentence``."""
    window = snapshot.window
    if window is None:
        return None
    ago_ns = window.ended_ago_ns or 0
    return {
        "number": window.number,
        "from": round(snapshot.time_s - (ago_ns + snapshot.elapsed_ns) / NS_PER_S, 6),
        "to": round(snapshot.time_s - ago_ns / NS_PER_S, 6),
        "ended": window.ended_ago_ns is not None,
        "traced_now": window.is_traced_now,
        "traced_s": round(window.traced_ns / NS_PER_S, 3),
        "total_s": round(window.total_ns / NS_PER_S, 3),
        "max_overhead": window.max_overhead,
    }


def _duration(time_ns: int) -> str:
    return format_duration(time_ns / NS_PER_S)
