"""Folded stacks, also with two figures per line as a difference has them."""

from __future__ import annotations

import re
from typing import Final

from tracelloc.errors import MalformedError
from tracelloc.filters import NamedStack
from tracelloc.snapshots.snapshot import StackStat, Target
from tracelloc.symbols import Frame
from tracelloc.views.profile import Metric, Profile, Sample

_LINE: Final = re.compile(r"(?P<stack>.*?)(?: (?P<before>\d+))? (?P<after>\d+)")


def read(content: bytes, time_s: float) -> Profile:
    """One sample per line; the figure is taken for outstanding bytes.

    The first name is the root: frames are given it as their module. ``time_s`` is when
    the file was written.
    """
    samples = []
    has_before = False
    root = ""
    for number, line in enumerate(content.decode(errors="backslashreplace").splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None or len(match["after"]) > 18 or len(match["before"] or "") > 18:
            raise MalformedError(f"line {number} is not a folded stack and a figure")
        before = match["before"]
        has_before = has_before or before is not None
        root, *names = match["stack"].split(";")
        frames = [Frame(0, name, name, None, None, root, None) for name in reversed(names)]
        stack = NamedStack(frames, [False] * len(frames))
        was, now = int(before or 0), int(match["after"])
        stat = StackStat(number, now - was, 0, 0, 0, 0)
        earlier = StackStat(number, was, 0, 0, 0, 0) if before is not None else None
        samples.append(Sample(stat, stack, earlier))
    samples.sort(key=lambda sample: (-sample.stat.live_bytes, sample.stat.index))
    return Profile(
        target=Target(0, root if samples else "unknown"),
        time_s=time_s,
        elapsed_ns=0,
        sample_bytes=None,
        samples=samples,
        facts={"difference": True} if has_before else {},
        has_modules=False,
        metrics=frozenset({Metric.BYTES}),
    )
