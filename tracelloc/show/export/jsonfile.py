"""The full snapshot as one JSON object: ``docs/json.md`` lists its keys."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from tracelloc.model.frames import Frame
from tracelloc.show.presentation.facts import frame_facts, suspect_facts
from tracelloc.show.presentation.profile import Metric, Profile, Sample, figures_of
from tracelloc.text import NS_PER_S

FORMAT: Final = "tracelloc-snapshot"
VERSION: Final = 1
_FRAME: Final = (
    "address", "symbol", "raw_symbol", "offset", "size", "module", "module_offset", "file", "line",
    "inlined",
)  # fmt: skip
_PIECE: Final = 256  # List entries per piece


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - it has all
    """Yields the file, with one list entry per line."""
    frames: dict[Frame, int] = {}
    stacks = [_stack(sample, frames) for sample in profile.samples]
    head = {
        "format": FORMAT,
        "version": VERSION,
        "time": round(profile.time_s, 6),
        "pid": profile.target.pid,
        "command": profile.target.command,
        "elapsed_s": profile.elapsed_ns / NS_PER_S,
        "sample_bytes": profile.sample_bytes,
        "space": profile.space,
        "difference": profile.is_difference,
        "notes": list(profile.notes),
        "suspects": [suspect_facts(named) for named in profile.suspects],
        "figures": {} if profile.is_difference else dict(profile.facts),
        "history": {
            "elapsed_s": [time_ns / NS_PER_S for time_ns, _ in profile.series],
            "bytes": [held for _, held in profile.series],
        },
        "modules": [asdict(file) for file in profile.files],
    }
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
    hidden = [at for at, is_hidden in enumerate(stack.hidden) if is_hidden]
    if hidden:
        entry["hidden"] = hidden
    labels = {at: label for at, label in enumerate(stack.labels) if label is not None}
    if labels:
        entry["labels"] = labels
    if sample.before is not None:
        entry["before"] = figures_of(sample.before)
    return entry
