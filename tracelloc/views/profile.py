"""A profile: what each call stack weighs, by name. Files are written from it and read into it.

It comes from a snapshot, from a file, or is the difference of two others: then the
figures are what the later one has more, and may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracelloc.filters import NamedStack
from tracelloc.heap.ranges import MappedStack
from tracelloc.snapshots.snapshot import Snapshot, StackStat, Target
from tracelloc.symbols import Frame
from tracelloc.target.space import Place
from tracelloc.text import format_size
from tracelloc.views.facts import target_facts
from tracelloc.views.losslines import losses_line
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
        facts=target_facts(snapshot),
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
