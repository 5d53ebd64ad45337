"""Outstanding bytes over time as counter events: for Perfetto and chrome://tracing.

The format is the "Trace Event Format" (JSON object form, phase C).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tracelloc.text import printable
from tracelloc.views.profile import Metric, Profile


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - bytes only
    """One event per moment of the history; times in microseconds since tracing began."""
    pid = profile.target.pid
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": pid,
            "args": {"name": printable(profile.target.command)},
        }
    ]
    events.extend(
        {
            "ph": "C",
            "name": "outstanding heap",
            "pid": pid,
            "tid": 0,
            "ts": time_ns / 1000,
            "args": {"bytes": held},
        }
        for time_ns, held in profile.series
    )
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"notes": [printable(note) for note in profile.notes]},
    }
    yield json.dumps(content, separators=(",", ":")).encode()
