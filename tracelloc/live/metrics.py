"""Figures of a profile as OpenMetrics text.

The format is https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md,
version 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tracelloc.export.listings import fold
from tracelloc.text import printable
from tracelloc.views.profile import Metric, Profile

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


def metrics(profiles: Sequence[Profile]) -> str:
    """The whole exposition, of one process or several."""
    return "".join(f"{line}\n" for line in _lines(profiles))


def _lines(profiles: Sequence[Profile]) -> Iterator[str]:
    for kind, figures in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, unit, key, text in figures:
            known = [profile for profile in profiles if profile.facts.get(key) is not None]
            if known:
                yield from _family(f"tracelloc_{name}", kind, unit, text)
            total = "_total" if kind == "counter" else ""
            for profile in known:
                labels = _labels(_target(profile))
                yield f"tracelloc_{name}{total}{labels} {profile.facts[key]}"
    yield from _family("tracelloc_lost", "counter", "", "What could not be seen, by cause")
    for profile in profiles:
        lost: dict[str, Any] = profile.facts.get("lost", {})
        for cause, count in lost.items():
            yield f"tracelloc_lost_total{_labels({**_target(profile), 'cause': cause})} {count}"
    text = f"Outstanding bytes of the {TOP_STACKS} stacks that hold most"
    yield from _family("tracelloc_stack_bytes", "gauge", "bytes", text)
    for profile in profiles:
        yield from _stacks(profile)
    yield "# EOF"


def _target(profile: Profile) -> dict[str, str]:
    return {"pid": str(profile.target.pid), "command": profile.target.command}


def _stacks(profile: Profile) -> Iterator[str]:
    for sample in profile.samples[:TOP_STACKS]:
        held = sample.weight(Metric.BYTES)
        if held > 0:
            stack = fold(sample.stack, sample.stat.index)[-_LONGEST_STACK:]
            labels = {"stack_id": str(sample.stat.index), "stack": stack}
            yield f"tracelloc_stack_bytes{_labels(_target(profile) | labels)} {held}"


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
