"""Snapshots in JSON, as tracelloc.export.jsonfile describes and writes them."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tracelloc.errors import MalformedError
from tracelloc.export.jsonfile import FORMAT, VERSION
from tracelloc.filters import NamedStack
from tracelloc.snapshots.snapshot import StackStat, Target
from tracelloc.symbols import Frame
from tracelloc.target.space import Unresolved
from tracelloc.text import NS_PER_S
from tracelloc.views.profile import FIGURES, MappedFile, Metric, Profile, Sample

_TEXTS: Final = ("symbol", "raw_symbol", "module", "file")
_NUMBERS: Final = ("offset", "size", "module_offset", "line")
"""Of frames; null if unknown."""
_REASONS: Final = {reason.value: reason for reason in Unresolved}


def read(content: bytes) -> Profile:
    """The profile. Raises MalformedError."""
    try:
        entry = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is damaged JSON ({error})") from error
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise MalformedError("it is JSON, but no snapshot of tracelloc's")
    if entry.get("version") != VERSION:
        raise MalformedError(f"it has version {entry.get('version')}, this program reads {VERSION}")
    try:
        return _profile(entry)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise MalformedError(f"something in it is missing or wrong ({error!r})") from error


def _profile(entry: dict[str, Any]) -> Profile:
    frames = [_frame(each) for each in entry["frames"]]
    history = entry["history"]
    facts: dict[str, Any] = dict(entry["figures"])
    if entry["difference"]:
        facts["difference"] = True
    sample_bytes = entry["sample_bytes"]
    return Profile(
        target=Target(int(entry["pid"]), _text(entry["command"])),
        time_s=_seconds(entry["time"]),
        elapsed_ns=round(_seconds(entry["elapsed_s"]) * NS_PER_S),
        sample_bytes=None if sample_bytes is None else int(sample_bytes),
        samples=[_sample(each, frames) for each in entry["stacks"]],
        files=[_file(each) for each in entry["modules"]],
        notes=[_text(note) for note in entry["notes"]],
        series=[
            (round(_seconds(time_s) * NS_PER_S), int(held))
            for time_s, held in zip(history["elapsed_s"], history["bytes"], strict=True)
        ],
        facts=facts,
        metrics=frozenset(Metric).difference(
            metric
            for metric in Metric
            if any(metric.figure.name not in each for each in entry["stacks"])
        ),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _maybe_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _maybe_number(value: Any) -> int | None:
    return None if value is None else int(value)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no time")
    return seconds


def _frame(entry: dict[str, Any]) -> Frame:
    reason = entry["reason"]
    known: dict[str, Any] = {name: _maybe_text(entry[name]) for name in _TEXTS}
    known |= {name: _maybe_number(entry[name]) for name in _NUMBERS}
    return Frame(
        address=int(entry["address"]),
        reason=None if reason is None else _REASONS[reason],
        inlined=bool(entry["inlined"]),
        **known,
    )


def _file(entry: dict[str, Any]) -> MappedFile:
    return MappedFile(
        path=_text(entry["path"]),
        start=int(entry["start"]),
        end=int(entry["end"]),
        offset=int(entry["offset"]),
        build_id=_maybe_text(entry["build_id"]),
    )


def _stat(index: int, entry: dict[str, Any]) -> StackStat:
    return StackStat(
        index, *(int(entry.get(f.name, 0) if f.optional else entry[f.name]) for f in FIGURES)
    )


def _sample(entry: dict[str, Any], frames: list[Frame]) -> Sample:
    index = int(entry["stack_id"])
    chosen = [frames[at] for at in entry["frames"] if at >= 0]
    hidden = [False] * len(chosen)
    for at in entry.get("filtered", ()):
        hidden[at] = True
    labels: list[str | None] = []
    if entry.get("labels"):
        labels = [None] * len(chosen)
        for at, label in entry["labels"].items():
            labels[int(at)] = _text(label)
    before = entry.get("before")
    return Sample(
        stat=_stat(index, entry),
        stack=NamedStack(chosen, hidden, labels),
        before=None if before is None else _stat(index, before),
    )
