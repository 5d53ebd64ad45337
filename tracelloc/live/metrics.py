"""Figures of a profile as OpenMetrics text.

The format is https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md,
version 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tracelloc.export.folded import fold
from tracelloc.report.profile import Profile
from tracelloc.text import printable
from tracelloc.views.calltree import Metric

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TOP_STACKS: Final = 10
"""Series that stacks get: each distinct stack is one for ever in a database of metrics."""
_LONGEST_STACK: Final = 1000
"""Characters of a stack's label; its innermost end is kept."""

_GAUGES: Final = (
    ("live_bytes", "bytes", "live_bytes", "Outstanding bytes"),
    ("live_allocations", "", "live_allocations", "Outstanding blocks"),
    ("live_stacks", "", "live_stacks", "Call stacks that hold at least one block"),
    ("rss_bytes", "bytes", "rss_bytes", "Resident memory of the process"),
    ("growth_bytes_per_min", "", "growth_bytes_per_min", "Growth over the last minute"),
    ("events_per_second", "", "events_per_s", "Allocations and frees seen per second"),
    ("probe_share_ratio", "ratio", "probe_share", "Share of the CPU time that probes take"),
    ("elapsed_seconds", "seconds", "elapsed_s", "Time since tracing began"),
)
_COUNTERS: Final = (
    ("allocated_bytes", "bytes", "allocated_bytes", "Bytes allocated since tracing began"),
    ("allocations", "", "allocations", "Blocks allocated since tracing began"),
    ("freed_bytes", "bytes", "freed_bytes", "Bytes freed of those"),
    ("frees", "", "frees", "Blocks freed of those"),
    ("unmatched_frees", "", "unmatched_frees", "Frees of blocks from before tracing began"),
)


def metrics(profile: Profile) -> str:
    """The whole exposition."""
    return "".join(f"{line}\n" for line in _lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    facts = profile.facts
    target = {"pid": str(profile.target.pid), "command": profile.target.command}
    for name, unit, key, text in _GAUGES:
        if facts.get(key) is not None:
            yield from _family(f"tracelloc_{name}", "gauge", unit, text)
            yield f"tracelloc_{name}{_labels(target)} {facts[key]}"
    for name, unit, key, text in _COUNTERS:
        if facts.get(key) is not None:
            yield from _family(f"tracelloc_{name}", "counter", unit, text)
            yield f"tracelloc_{name}_total{_labels(target)} {facts[key]}"
    lost: dict[str, Any] = facts.get("lost", {})
    yield from _family("tracelloc_lost", "counter", "", "What could not be seen, by cause")
    for cause, count in lost.items():
        yield f"tracelloc_lost_total{_labels({**target, 'cause': cause})} {count}"
    yield from _stacks(profile, target)
    yield "# EOF"


def _stacks(profile: Profile, target: dict[str, str]) -> Iterator[str]:
    text = f"Outstanding bytes of the {TOP_STACKS} stacks that hold most"
    yield from _family("tracelloc_stack_bytes", "gauge", "bytes", text)
    for sample in profile.samples[:TOP_STACKS]:
        held = sample.weight(Metric.BYTES)
        if held > 0:
            stack = fold(sample.stack, sample.stat.index)[-_LONGEST_STACK:]
            labels = {**target, "stack_id": str(sample.stat.index), "stack": stack}
            yield f"tracelloc_stack_bytes{_labels(labels)} {held}"


def _family(name: str, kind: str, unit: str, text: str) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}."


def _labels(labels: dict[str, str]) -> str:
    pairs = (f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
