"""Formats that list stacks or snapshots.

Folded stacks, the input of flamegraph.pl, have one line per distinct stack:
``ROOT;outermost;…;innermost FIGURE``. Semicolons separate frames, and the last space precedes the
figure. A difference has two figures per line, before and after, as flamegraph.pl expects.

speedscope's own JSON has one profile per metric, of type ``sampled``. The schema is
https://www.speedscope.app/file-format-schema.json.

A Chrome trace has live bytes over time as counter events, for Perfetto and
chrome://tracing: "Trace Event Format" (JSON object form, phase C).

The full snapshot is one JSON object, whose keys ``docs/files/schema.json`` describes.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from tracelloc.model.frames import Frame
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.calltree import outer_steps, shown_frames, steps
from tracelloc.show.presentation.facts import frame_facts, suspect_facts
from tracelloc.show.presentation.profile import FigureUnit, Metric, Profile, Sample, figures_of
from tracelloc.text import NS_PER_S, printable


def write_folded(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """Yields stacks with a figure above 0 (the format has no others), without hidden frames."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for sample in profile.samples:
        line = fold(sample.stack, sample.stat.index)
        after[line] += sample.after(metric)
        if sample.before is not None:
            before[line] += metric.value_of(sample.before)
    for line in sorted(after):
        figures = (before[line], after[line]) if profile.is_difference else (after[line],)
        if any(figure > 0 for figure in figures):
            words = " ".join(str(max(0, figure)) for figure in figures)
            yield f"{line} {words}\n".encode(errors="backslashreplace")


def fold(stack: NamedStack, index: int) -> str:
    """Formats the line of one stack without its figure."""
    return ";".join(_clean(step.name) for step in steps(stack, index))


@functools.lru_cache(maxsize=1 << 16)
def _clean(name: str) -> str:
    return printable(name).replace(";", ":")


def write_speedscope(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """Yields a speedscope file. A difference has separate profiles for growth and shrinkage."""
    frames: dict[tuple[str, str, int], int] = {}
    stacks = [_numbered(sample, frames) for sample in profile.samples]
    profiles: list[dict[str, Any]] = []
    active = 0
    for each in Metric:
        unit = "none" if each.unit is FigureUnit.BLOCKS else "bytes"
        weights = [sample.weight(each) for sample in profile.samples]
        if each is metric:
            active = len(profiles)
        elif not profile.shows(each):
            continue
        signs = (("more ", 1), ("less ", -1)) if profile.is_difference else (("", 1),)
        for word, sign in signs:
            signed = [sign * weight for weight in weights]
            profiles.append(_sampled(f"{word}{each.title}", unit, stacks, signed))
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": f"{printable(profile.target.command)} ({profile.target.pid})",
        "exporter": "tracelloc",
        "activeProfileIndex": active,
        "shared": {"frames": [_frame(*key) for key in frames]},
        "profiles": profiles,
    }
    yield json.dumps(content, separators=(",", ":")).encode()


def _numbered(sample: Sample, frames: dict[tuple[str, str, int], int]) -> list[int]:
    """Returns the numbers of the shown frames, outermost first, below the root module."""
    stack = sample.stack
    keys = [(name, f.file or "", f.line or 0) for name, f in shown_frames(stack)]
    keys += [(step.name, "", 0) for step in reversed(outer_steps(stack, sample.stat.index))]
    return [frames.setdefault(key, len(frames)) for key in reversed(keys)]


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    frame: dict[str, Any] = {"name": printable(name)}
    if file:
        frame["file"] = printable(file)
    if line:
        frame["line"] = line
    return frame


def _sampled(title: str, unit: str, stacks: list[list[int]], weights: list[int]) -> dict[str, Any]:
    """Returns a profile of the positive weights, as the format can't hold others."""
    held = [n for n, weight in enumerate(weights) if weight > 0]
    return {
        "type": "sampled", "name": title, "unit": unit, "startValue": 0,
        "endValue": sum(weights[n] for n in held), "samples": [stacks[n] for n in held],
        "weights": [weights[n] for n in held],
    }  # fmt: skip


def write_trace(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - bytes only
    """Yields a Chrome trace: an event per history sample, in microseconds since tracing began."""
    pid, name = profile.target.pid, printable(profile.target.command)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    ]
    live = {"ph": "C", "name": "live heap", "pid": pid, "tid": 0}
    events += (live | {"ts": ns / 1000, "args": {"bytes": held}} for ns, held in profile.series)
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"notes": [printable(note) for note in profile.notes]},
    }
    yield json.dumps(content, separators=(",", ":")).encode()


FORMAT: Final = "tracelloc-snapshot"
VERSION: Final = 1
_FRAME: Final = (
    "address", "symbol", "raw_symbol", "offset", "size", "module", "module_offset", "file", "line",
    "inlined",
)  # fmt: skip
_PIECE: Final = 256  # List entries per piece


def write_snapshot(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - it has all
    """Yields the file, with one list entry per line."""
    frames: dict[Frame, int] = {}
    stacks = [_stack(sample, frames) for sample in profile.samples]
    head = {
        "format": FORMAT, "version": VERSION, "time": round(profile.time_s, 6),
        "pid": profile.target.pid, "command": profile.target.command,
        "elapsed_s": profile.elapsed_ns / NS_PER_S, "sample_bytes": profile.sample_bytes,
        "space": profile.space, "difference": profile.is_difference, "notes": list(profile.notes),
        "suspects": [suspect_facts(named) for named in profile.suspects],
        "figures": {} if profile.is_difference else dict(profile.facts),
        "history": {
            "elapsed_s": [time_ns / NS_PER_S for time_ns, _ in profile.series],
            "bytes": [held for _, held in profile.series],
        },
        "modules": [asdict(file) for file in profile.files],
    }  # fmt: skip
    yield _text(head)[:-1].encode()
    yield from _list("frames", [frame_facts(frame, _FRAME) for frame in frames])
    yield from _list("stacks", stacks)
    yield b"}\n"


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _list(name: str, entries: list[dict[str, Any]]) -> Iterator[bytes]:
    yield f',\n"{name}":[\n'.encode()
    for start in range(0, len(entries), _PIECE):
        piece = ",\n".join(map(_text, entries[start : start + _PIECE]))
        yield (",\n" if start else "").encode() + piece.encode()
    yield b"]"


def _stack(sample: Sample, frames: dict[Frame, int]) -> dict[str, Any]:
    stack = sample.stack
    entry: dict[str, Any] = {"stack_id": sample.stat.index, **figures_of(sample.stat)}
    entry["verdict"] = sample.verdict
    entry["frames"] = [frames.setdefault(frame, len(frames)) for frame in stack.frames]
    if hidden := [at for at, is_hidden in enumerate(stack.hidden) if is_hidden]:
        entry["hidden"] = hidden
    if labels := {at: label for at, label in enumerate(stack.labels) if label is not None}:
        entry["labels"] = labels
    if sample.before is not None:
        entry["before"] = figures_of(sample.before)
    return entry
