"""speedscope's own JSON: one profile per metric, of type ``sampled``.

The schema is https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tracelloc.text import printable
from tracelloc.views.calltree import outer_steps, shown_frames
from tracelloc.views.profile import Metric, Profile, Sample, Unit


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """The file. Of a difference, what is more and what is less are profiles of their own."""
    frames: dict[tuple[str, str, int], int] = {}
    stacks = [_numbered(sample, frames) for sample in profile.samples]
    profiles: list[dict[str, Any]] = []
    active = 0
    for each in Metric:
        unit = "none" if each.unit is Unit.BLOCKS else "bytes"
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
    """Numbers of the frames to be shown, outermost first, below the root module."""
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
    """What is above zero: a profile can't hold anything else."""
    held = [n for n, weight in enumerate(weights) if weight > 0]
    return {
        "type": "sampled",
        "name": title,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights[n] for n in held),
        "samples": [stacks[n] for n in held],
        "weights": [weights[n] for n in held],
    }
