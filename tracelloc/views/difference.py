"""The difference of two profiles, stack by stack."""

from __future__ import annotations

from dataclasses import replace

from tracelloc.snapshots.snapshot import StackStat
from tracelloc.target.procfs import base_name
from tracelloc.units import NS_PER_S
from tracelloc.views.calltree import outer_steps, shown_frames
from tracelloc.views.metrics import FIGURES
from tracelloc.views.profile import Profile, Sample


def difference(before: Profile, after: Profile) -> Profile:
    """What ``after`` has more, stack by stack.

    Stacks are the same if what is shown of them has the same names and files; lines and
    addresses may differ, as they do between two runs or builds.
    """
    with_modules = before.has_modules and after.has_modules
    old, new = _merged(before, with_modules), _merged(after, with_modules)
    samples = []
    for key, sample in (old | new).items():
        # Of both, the later names are kept: the right-hand side of | wins.
        zero = StackStat(sample.stat.index, 0, 0, 0, 0, 0)
        was = old[key].stat if key in old else zero
        now = new[key].stat if key in new else zero
        samples.append(Sample(_minus(now, was), sample.stack, was, pid=sample.pid))
    samples.sort(key=lambda s: (-s.stat.live_bytes, s.stat.index))
    elapsed_ns = round((after.time_s - before.time_s) * NS_PER_S)
    return replace(
        after,
        elapsed_ns=max(0, elapsed_ns),
        samples=samples,
        files=after.files or before.files,
        notes=[*(f"before: {note}" for note in before.notes), *after.notes],
        suspects=(),
        facts={"difference": True},
        has_modules=with_modules,
        metrics=before.metrics & after.metrics,
    )


def _merged(profile: Profile, with_modules: bool) -> dict[tuple[str, ...], Sample]:
    """Samples by what makes them the same."""
    merged: dict[tuple[str, ...], Sample] = {}
    for sample in profile.samples:
        key = _identity(sample, with_modules)
        known = merged.get(key)
        if known is None:
            merged[key] = sample
        else:
            merged[key] = replace(known, stat=_minus(known.stat, sample.stat, -1))
    return merged


def _identity(sample: Sample, with_modules: bool) -> tuple[str, ...]:
    if not sample.stack.frames:
        return tuple(step.name for step in outer_steps(sample.stack, sample.stat.index))
    names: list[str] = []
    for name, frame in shown_frames(sample.stack):
        names.append(name)
        if with_modules:
            names.append(base_name(frame.module or ""))
    return tuple(names)


def _minus(a: StackStat, b: StackStat, sign: int = 1) -> StackStat:
    return StackStat(a.index, *(figure.of(a) - sign * figure.of(b) for figure in FIGURES))
