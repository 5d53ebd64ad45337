"""Makes profiles of snapshots and traces, merges the profiles of a trace, subtracts profiles."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracelloc.errors import UsageError
from tracelloc.model.blocks import MappedStack
from tracelloc.model.codefiles import CodePlace, base_name
from tracelloc.model.frames import Frame
from tracelloc.model.process import Space
from tracelloc.model.verdicts import rank
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.blocktypes import BlockTypes
from tracelloc.show.presentation.calltree import outer_steps, root_name, shown_frames
from tracelloc.show.presentation.facts import target_facts
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.show.presentation.processfacts import losses_line
from tracelloc.show.presentation.profile import FIGURES, MappedFile, Profile, Sample
from tracelloc.show.presentation.suspects import NamedSuspect, name_suspects, suspects_of
from tracelloc.snapshots.snapshot import Snapshot, StackStat, TraceSnapshot
from tracelloc.text import NS_PER_S, printable, sampling_of

Progress = Callable[[int, int], None]  # Called with the amount done and the total

MAPPED = "[mmap]"  # The outermost frame of stacks whose figures are of mappings, not blocks

_STEP = 512  # Stacks between two progress calls


def profile_of(
    snapshot: Snapshot, namer: Namer, *, freed: bool = True, progress: Progress | None = None,
    patience_s: float | None = None,
) -> Profile:  # fmt: skip
    """Makes a snapshot's profile, waiting for names; ``freed``: also stacks without blocks."""
    stats = snapshot.top_stacks(freed=freed)
    mapped = () if snapshot.mappings is None else snapshot.mappings.stacks
    indices, findings = [stat.index for stat in stats], snapshot.findings
    every = [*indices, *(held.stack for held in mapped)]
    namer.prepare(snapshot, every, patience_s)
    samples = []
    types = BlockTypes().types_of(snapshot, namer, np.array(indices, np.int64))
    for number, (stat, block_type) in enumerate(zip(stats, types, strict=True)):
        if progress is not None and number % _STEP == 0:
            progress(number, len(stats))
        verdict = None if findings is None else findings.verdict(stat.index).value
        stack = namer.stack(snapshot, stat.index)
        samples.append(Sample(stat, stack, verdict=verdict, block_type=block_type))
    samples += (_mapped(held, namer.stack(snapshot, held.stack)) for held in mapped)
    notes = [losses_line(snapshot)]
    if snapshot.sample_bytes is not None:
        notes.append(f"estimated from samples, {sampling_of(snapshot.sample_bytes)}")
    if snapshot.space is not Space.HOST:
        notes.append("memory of GPUs, not of the process")
    return Profile(
        target=snapshot.target, time_s=snapshot.time_s, elapsed_ns=snapshot.elapsed_ns,
        sample_bytes=snapshot.sample_bytes, samples=samples,
        files=_files(namer, {address for index in every for address in snapshot.frames(index)}),
        notes=notes, suspects=name_suspects(snapshot, namer, suspects_of(snapshot)),
        series=(*snapshot.live_history, (snapshot.elapsed_ns, snapshot.live_bytes)),
        facts=target_facts(snapshot), table_number=snapshot.table_number,
    )  # fmt: skip


def _mapped(held: MappedStack, stack: NamedStack) -> Sample:
    stat = StackStat(
        held.stack, held.size_bytes, held.count, held.size_bytes, held.count, growth_bytes_per_min=0
    )
    return Sample(stat, stack.below(Frame(0, MAPPED, None, None, None, None, None)))


def is_of_mappings(sample: Sample) -> bool:
    """Whether a sample is of mappings, not blocks."""
    return any(frame.symbol == MAPPED for frame in sample.stack.frames[-1:])


def _files(namer: Namer, addresses: set[int]) -> list[MappedFile]:
    files: dict[tuple[int, str], MappedFile] = {}
    for address in addresses:
        place = namer.symbols.place(address - 1)
        if isinstance(place, CodePlace) and place.module is not None:
            at = place.mapping
            if (key := (at.start, at.path)) not in files:
                build_id = place.module.build_id
                files[key] = MappedFile(at.path, at.start, at.end, at.offset, build_id)
    return [files[key] for key in sorted(files)]


def trace_profiles(
    trace: TraceSnapshot, namers: Namers, *, freed: bool,
    marks: Mapping[int, Snapshot] | None = None, progress: Progress | None = None,
    patience_s: float | None = None,
) -> list[Profile]:  # fmt: skip
    """Makes the profile of each process; ``marks``: earlier snapshots to subtract, by number."""
    profiles = []
    for one in trace.processes:
        namer = namers.namer_of(one.target)
        now = profile_of(one, namer, freed=freed, progress=progress, patience_s=patience_s)
        if marks:
            mark = marks.get(one.target.number)
            before = profile_of(mark, namer, freed=freed, patience_s=patience_s) if mark else None
            now = change_since(before, now)
        profiles.append(now)
    return profiles


def change_since(before: Profile | None, now: Profile) -> Profile:
    """Returns the difference of a process's profiles; all of ``now`` if ``before`` is None."""
    return difference(replace(now, samples=()) if before is None else before, now)


def joined_profile(profiles: Sequence[Profile]) -> Profile:
    """Returns the profile of a trace: its only process's profile, or all processes merged.

    In a merged profile each stack begins with its process, and stacks are renumbered. It has no
    ``files``, as processes map different files at the same address.
    """
    whole = profiles[0]
    if len(profiles) == 1:
        return whole
    samples: list[Sample] = []
    suspects: list[NamedSuspect] = []
    notes: list[str] = []
    first_index = 0
    for profile in profiles:
        name = f"{printable(profile.target.command)}-{profile.target.pid}"
        own = [_sample_of(sample, profile, name, first_index) for sample in profile.samples]
        suspects += (_suspect_of(suspect, name, first_index) for suspect in profile.suspects)
        notes += (f"{name}: {note}" for note in profile.notes)
        first_index = 1 + max((sample.stat.index for sample in own), default=first_index - 1)
        samples += own
    samples.sort(key=lambda sample: (-sample.stat.live_bytes, sample.stat.index))
    suspects.sort(key=lambda named: rank(named.suspect))
    return Profile(
        target=whole.target, time_s=whole.time_s, elapsed_ns=whole.elapsed_ns,
        sample_bytes=whole.sample_bytes, samples=samples, notes=notes, suspects=suspects,
        facts=({"difference": True} if whole.is_difference else {}) | {"space": whole.space},
        parts=profiles,
    )  # fmt: skip


def _sample_of(sample: Sample, profile: Profile, name: str, first_index: int) -> Sample:
    stat = replace(sample.stat, index=first_index + sample.stat.index)
    stack = _begun_by(sample.stack, name)
    return replace(sample, stat=stat, stack=stack, pid=profile.target.pid)


def _suspect_of(named: NamedSuspect, name: str, first_index: int) -> NamedSuspect:
    members = (replace(m, stack=first_index + m.stack) for m in named.suspect.members)
    suspect = replace(named.suspect, members=tuple(members))
    return replace(named, suspect=suspect, stack=_begun_by(named.stack, name))


def _begun_by(stack: NamedStack, process: str) -> NamedStack:
    if not stack.frames:
        return stack
    return stack.below(Frame(0, root_name(stack), None, None, None, process, None))


def difference(before: Profile, after: Profile) -> Profile:
    """Subtracts profiles stack by stack: ``after`` minus ``before``.

    Stacks are equal if the names and files of their shown frames are; lines and addresses may
    differ, as they do between runs or builds. Raises UsageError if one is of another space.
    """
    if before.space != after.space:
        raise UsageError("memory of GPUs can't be compared with the process's own")
    with_modules = before.has_modules and after.has_modules
    old, new = _merged(before, with_modules), _merged(after, with_modules)
    samples = []
    for key, sample in (old | new).items():
        # The later names are kept: the right-hand side of | wins.
        zero = StackStat(sample.stat.index, 0, 0, 0, 0, 0)
        was, now = (each[key].stat if key in each else zero for each in (old, new))
        samples.append(replace(sample, stat=_minus(now, was), before=was, verdict=None))
    samples.sort(key=lambda s: (-s.stat.live_bytes, s.stat.index))
    return replace(
        after, elapsed_ns=max(0, round((after.time_s - before.time_s) * NS_PER_S)), samples=samples,
        files=after.files or before.files,
        notes=[*(f"before: {note}" for note in before.notes), *after.notes], suspects=(),
        facts={"difference": True, "space": after.space}, has_modules=with_modules,
        metrics=before.metrics & after.metrics, parts=(),
    )  # fmt: skip


def _merged(profile: Profile, with_modules: bool) -> dict[Hashable, Sample]:
    merged: dict[Hashable, Sample] = {}
    for sample in profile.samples:
        key = _identity(sample, with_modules)
        known = merged.setdefault(key, sample)
        if known is not sample:
            merged[key] = replace(known, stat=_minus(known.stat, sample.stat, -1))
    return merged


def _identity(sample: Sample, with_modules: bool) -> Hashable:
    if not sample.stack.frames:
        return tuple(step.name for step in outer_steps(sample.stack, sample.stat.index))
    return tuple(
        (name, base_name(frame.module or "")) if with_modules else name
        for name, frame in shown_frames(sample.stack)
    )


def _minus(a: StackStat, b: StackStat, sign: int = 1) -> StackStat:
    return StackStat(a.index, *(each.value_of(a) - sign * each.value_of(b) for each in FIGURES))
