"""The profiles of a trace: one per process, or all of them as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelloc.filters import NamedStack
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.snapshots.trace import TraceSnapshot
from tracelloc.symbols import Frame
from tracelloc.text import printable
from tracelloc.verdict.suspects import rank
from tracelloc.views.calltree import root_name
from tracelloc.views.difference import difference
from tracelloc.views.namers import Namers
from tracelloc.views.profile import Profile, Progress, Sample, profile_of
from tracelloc.views.suspects import NamedSuspect


def trace_profiles(
    trace: TraceSnapshot,
    namers: Namers,
    *,
    freed: bool,
    marks: Mapping[int, Snapshot] | None = None,
    progress: Progress | None = None,
    patience_s: float | None = None,
) -> list[Profile]:
    """A profile of each process; see ``profile_of``.

    ``marks``: by number, processes as they were earlier; their profiles are what they have
    more since then.
    """

    def profile(one: Snapshot) -> Profile:
        namer = namers.of(one.target)
        now = profile_of(one, namer, freed=freed, progress=progress, patience_s=patience_s)
        if not marks:
            return now
        mark = marks.get(one.target.number)
        return since(None if mark is None else profile_of(mark, namer, freed=freed), now)

    return [profile(one) for one in trace.processes]


def since(before: Profile | None, now: Profile) -> Profile:
    """What a process has more than before; None: it was not there then."""
    return difference(replace(now, samples=()) if before is None else before, now)


def joined(profiles: Sequence[Profile]) -> Profile:
    """The profile of a trace: that of its only process, or all of them in one.

    Each stack then begins with its process, and stacks are numbered anew. There are no
    ``files``: in different processes different ones are at the same addresses.
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
        target=whole.target,
        time_s=whole.time_s,
        elapsed_ns=whole.elapsed_ns,
        sample_bytes=whole.sample_bytes,
        samples=samples,
        notes=notes,
        suspects=suspects,
        facts={"difference": True} if whole.is_difference else {},
    )


def _sample_of(sample: Sample, profile: Profile, name: str, first_index: int) -> Sample:
    """The same, of a process among others."""
    stat = replace(sample.stat, index=first_index + sample.stat.index)
    stack = _begun_by(sample.stack, name)
    return replace(sample, stat=stat, stack=stack, pid=profile.target.pid)


def _suspect_of(named: NamedSuspect, name: str, first_index: int) -> NamedSuspect:
    members = (replace(m, stack=first_index + m.stack) for m in named.suspect.members)
    suspect = replace(named.suspect, members=tuple(members))
    return replace(named, suspect=suspect, stack=_begun_by(named.stack, name))


def _begun_by(stack: NamedStack, process: str) -> NamedStack:
    """The stack with its process as the root, above the module that it starts in."""
    if not stack.frames:
        return stack
    return stack.below(Frame(0, root_name(stack), None, None, None, process, None))
