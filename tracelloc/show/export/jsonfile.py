"""The full snapshot as one JSON object. Sizes in bytes, times in seconds.

::

    format            "tracelloc-snapshot"
    version           1; increases when a key changes its meaning, not when one is added
    time              when it was taken, seconds since 1970
    pid, command      the target
    elapsed_s         for how long; of a difference, the time between the two
    sample_bytes      mean distance of samples (figures are estimates); null: exact
    difference        whether figures are the later snapshot's minus the earlier one's
    notes             [text]: what was missed, in words
    suspects          what leaks or may leak, the strongest first, as in a --json report, but
                      with a stack_id in place of the stack
    figures           the keys of a --json report on the whole target, and its sections peak,
                      temporary and threads (if known) without their stacks; {} if unknown,
                      as in a difference
    history           {elapsed_s: [...], bytes: [...]}: outstanding bytes over time
    modules           [{path, start, end, offset, build_id}]: mapped files of code; start
                      and end are addresses in the target, offset is the file's at start
    frames            [{address, symbol, raw_symbol, offset, size, module, module_offset,
                      file, line, inlined, reason}]: distinct frames; null: unknown
    stacks            [{stack_id, bytes, allocations, allocated_bytes, allocated,
                      growth_bytes_per_min, peak_bytes, peak_allocations, temporary_bytes,
                      temporary_allocations, remote_freed_bytes, remote_frees, verdict,
                      frames, filtered, labels}], by bytes, largest first; bytes and
                      allocations are outstanding; peak figures are of the whole target's
                      high-water mark; temporary blocks were freed soon, by the thread that
                      allocated them, remote ones by another thread; verdict is null if
                      unknown

``frames`` of a stack are positions in the list of frames, innermost first. ``filtered`` lists
the positions, within the stack, of hidden frames; ``labels`` is ``{position: label}`` for
frames of collapsed runs. Either is omitted if empty. Stacks of a difference have ``before``
with the figures of the earlier snapshot.
"""

from __future__ import annotations

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
