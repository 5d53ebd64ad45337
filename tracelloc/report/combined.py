"""The profiles of several processes as one: each stack begins with its process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracelloc.filters import NamedStack
from tracelloc.report.profile import Profile, Sample
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import Frame
from tracelloc.text import printable
from tracelloc.verdict.suspects import rank
from tracelloc.views.calltree import root_name
from tracelloc.views.suspects import NamedSuspect


def combined(whole: Snapshot, profiles: Iterable[Profile]) -> Profile:
    """One profile of them all; ``whole`` says what it is of, and when it was taken.

    Stacks are numbered anew. There are no ``files``: in different processes different
    ones are at the same addresses.
    """
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
