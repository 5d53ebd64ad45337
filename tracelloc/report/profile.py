"""A profile: what each call stack weighs, by name. Files are written from it and read into it.

It comes from a snapshot, from a file, or is the difference of two others: then the
figures are what the later one has more, and may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracelloc.filters import NamedStack
from tracelloc.heap.ranges import MappedStack
from tracelloc.report.jsonlines import summary
from tracelloc.report.sections import section_facts
from tracelloc.report.text import losses_line
from tracelloc.snapshots.snapshot import Snapshot, StackStat, Target
from tracelloc.symbols import Frame
from tracelloc.target.procfs import base_name
from tracelloc.target.space import Place
from tracelloc.units import NS_PER_S, format_size
from tracelloc.views.calltree import frame_name, steps
from tracelloc.views.metrics import FIGURES, Metric
from tracelloc.views.naming import Namer
from tracelloc.views.suspects import NamedSuspect, name_suspects, suspects_of

Progress = Callable[[int, int], None]
"""Told how much is done, of how much."""

MAPPED = "[mmap]"
"""The outermost frame of stacks whose figures are mappings and not blocks."""

_STEP = 512
"""Stacks between two notes of progress."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call stack and its figures."""

    stat: StackStat
    stack: NamedStack
    before: StackStat | None = None
    """Of a difference: what the earlier profile had."""
    verdict: str | None = None
    """What kind of memory it is; None if nobody looked."""
    pid: int | None = None
    """Of several processes' samples, whose it is; None: the profile's target's."""

    def weight(self, metric: Metric) -> int:
        """What it has, or has more; negative only in differences and for growth."""
        return metric.of(self.stat)

    def after(self, metric: Metric) -> int:
        """What it has in the end: of a difference, in the later profile."""
        return self.weight(metric) + (0 if self.before is None else metric.of(self.before))


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file of code in the target's memory. Addresses are the target's."""

    path: str
    start: int
    end: int
    offset: int
    """In the file, of ``start``."""
    build_id: str | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Stacks with their figures, and where they come from."""

    target: Target
    time_s: float
    """Wall clock, seconds since 1970."""
    elapsed_ns: int
    """How long it was traced; of a difference, the time between the two."""
    sample_bytes: int | None
    samples: Sequence[Sample]
    """By outstanding bytes, largest first."""
    files: Sequence[MappedFile] = ()
    """By address."""
    notes: Sequence[str] = ()
    """What was missed, in words."""
    suspects: Sequence[NamedSuspect] = ()
    """What leaks or may leak, the best first; none in differences and in profiles from files."""
    series: Sequence[tuple[int, int]] = ()
    """(time since tracing began in ns, outstanding bytes then), oldest first."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The figures of the whole target, as JSON reports have them; empty if unknown."""
    has_modules: bool = True
    """Whether frames say in which file they are: folded stacks do not."""
    metrics: frozenset[Metric] = frozenset(Metric)
    """What it has figures of; those of others are 0."""

    @property
    def is_difference(self) -> bool:
        """Whether figures are differences."""
        return bool(self.facts.get("difference"))

    def shows(self, metric: Metric) -> bool:
        """Whether the metric is of use: there is some of it, or all profiles have it."""
        return not metric.figure.optional or any(s.after(metric) for s in self.samples)

    def total(self, metric: Metric) -> int:
        """Of all stacks."""
        return sum(sample.weight(metric) for sample in self.samples)


def figures_of(stat: StackStat) -> dict[str, int]:
    """As files have them."""
    return {figure.name: figure.of(stat) for figure in FIGURES}


def shown_frames(stack: NamedStack) -> Iterator[tuple[str, Frame]]:
    """(name, frame) of what is to be shown, innermost first; runs as ``[label]``."""
    for frame, hidden, label in zip(stack.frames, stack.hidden, stack.all_labels, strict=True):
        if not hidden:
            yield f"[{label}]" if label else frame_name(frame), frame


def profile_of(
    snapshot: Snapshot,
    namer: Namer,
    *,
    freed: bool = True,
    progress: Progress | None = None,
    patience_s: float | None = None,
) -> Profile:
    """The snapshot with names; waits for them, at most ``patience_s``.

    Without ``freed`` only stacks that hold a block.
    """
    stats = snapshot.top_stacks(freed=freed)
    mapped = [] if snapshot.mappings is None else [m.stack for m in snapshot.mappings.stacks]
    namer.prepare(snapshot, [*(stat.index for stat in stats), *mapped], patience_s)
    samples = []
    addresses: set[int] = set()
    findings = snapshot.findings
    for number, stat in enumerate(stats):
        if progress is not None and number % _STEP == 0:
            progress(number, len(stats))
        verdict = None if findings is None else findings.verdict(stat.index).value
        samples.append(Sample(stat, namer.stack(snapshot, stat.index), verdict=verdict))
        addresses.update(snapshot.frames(stat.index))
    for held in snapshot.mappings.stacks if snapshot.mappings is not None else ():
        samples.append(_mapped(held, namer.stack(snapshot, held.stack)))
        addresses.update(snapshot.frames(held.stack))
    return Profile(
        target=snapshot.target,
        time_s=snapshot.time_s,
        elapsed_ns=snapshot.elapsed_ns,
        sample_bytes=snapshot.sample_bytes,
        samples=samples,
        files=_files(namer, addresses),
        notes=_notes(snapshot),
        suspects=name_suspects(snapshot, namer, suspects_of(snapshot)),
        series=(*snapshot.past_bytes, (snapshot.elapsed_ns, snapshot.live_bytes)),
        facts=summary(snapshot) | section_facts(snapshot),
    )


def _mapped(held: MappedStack, stack: NamedStack) -> Sample:
    """What a stack has mapped, under a frame that says so and keeps it apart from blocks."""
    stat = StackStat(
        held.stack, held.size_bytes, held.count, held.size_bytes, held.count, growth_bytes_per_min=0
    )
    return Sample(stat, stack.below(Frame(0, MAPPED, None, None, None, None, None)))


def _notes(snapshot: Snapshot) -> list[str]:
    notes = [losses_line(snapshot)]
    if snapshot.sample_bytes is not None:
        notes.append(f"estimated from samples, one in {format_size(snapshot.sample_bytes)}")
    return notes


def _files(namer: Namer, addresses: set[int]) -> list[MappedFile]:
    files: dict[tuple[int, str], MappedFile] = {}
    for address in addresses:
        place = namer.place(address - 1)
        if not isinstance(place, Place) or place.module is None:
            continue
        mapping = place.mapping
        key = mapping.start, mapping.path
        if key not in files:
            files[key] = MappedFile(
                path=mapping.path,
                start=mapping.start,
                end=mapping.end,
                offset=mapping.offset,
                build_id=place.module.elf.build_id,
            )
    return [files[key] for key in sorted(files)]


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
        return tuple(step.name for step in steps(sample.stack, sample.stat.index))
    names: list[str] = []
    for name, frame in shown_frames(sample.stack):
        names.append(name)
        if with_modules:
            names.append(base_name(frame.module or ""))
    return tuple(names)


def _minus(a: StackStat, b: StackStat, sign: int = 1) -> StackStat:
    return StackStat(a.index, *(figure.of(a) - sign * figure.of(b) for figure in FIGURES))
