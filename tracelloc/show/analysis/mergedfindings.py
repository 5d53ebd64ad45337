"""Verdicts and suspects of several processes, merged by stack."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from tracelloc.dataclass import dataclass, fields, replace
from tracelloc.model.figures import I64
from tracelloc.model.verdicts import (
    CODE_OF,
    Findings,
    JudgingBasis,
    Member,
    Sites,
    Suspect,
    Verdict,
    rank,
)
from tracelloc.show.analysis.locations import Locations
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Columns of `Sites` that are summed.
_COUNTS: Final = ("survivors", "born_in_window", "alive", "alive_bytes", "born", "asked",
                   "unreachable", "unreachable_bytes")  # fmt: skip
_SUMMED: Final = "survivors", "retracted", "searched", "unreachable"  # Counts of judgements
# Verdicts that outrank all others, the worst one last.
_WORST: Final = (CODE_OF[Verdict.GROWING], CODE_OF[Verdict.LEAKING])

_Record = TypeVar("_Record", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class MergedProcess:
    """A process of a merged snapshot, and which index in the merge each of its stacks has."""

    one: Snapshot
    merged: I64  # Merged index by own index; -1 for stacks that have not allocated anything
    rows: I64  # Own indices of the stacks that have allocated something
    at: I64  # Merged indices of `rows`


def added(
    records: Iterable[_Record], identity: tuple[str, ...] = (), least: tuple[str, ...] = ()
) -> list[_Record]:
    """Joins records with equal identities: the sums of other fields, the minimum of ``least``."""
    groups: dict[Any, list[_Record]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record, name) for name in identity), []).append(record)
    found = []
    for group in groups.values():
        names = [each.name for each in fields(group[0]) if each.name not in identity]
        sums = {n: (min if n in least else sum)(getattr(r, n) for r in group) for n in names}
        found.append(replace(group[0], **sums))
    return found


def merged_findings(
    parts: Sequence[MergedProcess], count: int, locations: Locations, merged: Snapshot
) -> Findings | None:
    """Merges findings of ``count`` stacks: the worst verdicts, and summed rates; None: none."""
    known = [(part, part.one.findings) for part in parts if part.one.findings is not None]
    if not known:
        return None
    start_ns = merged.now_ns - merged.elapsed_ns
    suspects, left_out = _suspects(known, locations)
    retracted = np.zeros(count, np.int64)
    for part, found in known:
        rows = part.rows[part.rows < len(found.retracted)]
        np.add.at(retracted, part.merged[rows], found.retracted[rows])
    suppressed = [found.suppressed for _, found in known if found.suppressed is not None]
    return Findings(
        moment=JudgingBasis(
            start_ns,
            max(found.moment.now_ns for _, found in known),
            any(found.moment.sampled for _, found in known),
        ),
        suspects=suspects,
        suspects_left_out=left_out,
        suspect_of={member.stack: each for each in suspects for member in each.members},
        sites=_sites(known, count, start_ns),
        retracted=retracted,
        suppressed=next(iter(added(suppressed)), None),
    )


def _sites(known: Sequence[tuple[MergedProcess, Findings]], count: int, start_ns: int) -> Sites:
    parts, places = [], []
    for part, found in known:
        rows = part.rows[part.rows < len(found.sites)]
        sites = found.sites.select(rows)
        later_s = (found.moment.start_ns - start_ns) / NS_PER_S
        parts.append(replace(sites, since_s=sites.since_s + later_s))
        places.append(part.merged[rows])
    zeros = {f.name: np.zeros(1, getattr(parts[0], f.name).dtype) for f in fields(Sites)}
    without = replace(Sites(**zeros), code=np.full(1, CODE_OF[Verdict.DECIDING], np.uint8))
    whole, at = Sites.concatenate([*parts, without]), np.concatenate(places)
    code = whole.code[:-1]
    badness = (code == _WORST[0]) + 2 * (code == _WORST[1])
    order = np.lexsort((whole.alive_bytes[:-1], badness, at))
    chosen = np.full(count, len(at), np.intp)
    # If a stack is assigned several times, the last assignment wins.
    chosen[at[order]] = order
    alike = np.flatnonzero(code == whole.code[chosen[at]])
    columns: dict[str, Any] = {}
    for name in _COUNTS:
        columns[name] = np.zeros(count)
        np.add.at(columns[name], at[alike], getattr(whole, name)[alike])
    columns["rate_bytes_per_min"] = np.zeros(count)
    np.add.at(columns["rate_bytes_per_min"], at, whole.rate_bytes_per_min[:-1])
    return replace(whole.select(chosen), **columns)


def _suspects(
    known: Sequence[tuple[MergedProcess, Findings]], locations: Locations
) -> tuple[tuple[Suspect, ...], int]:
    groups: dict[int, list[tuple[int, Suspect]]] = {}
    group_of: dict[int, int] = {}  # Group by stack
    for number, (part, suspect) in enumerate(
        (part, suspect) for part, found in known for suspect in found.suspects
    ):
        group = [(part.one.target.number, _renumbered(suspect, part, locations))]
        stacks = [member.stack for member in group[0][1].members]
        for other in {group_of[stack] for stack in stacks if stack in group_of}:
            group += groups.pop(other)
        groups[number] = group
        group_of.update((m.stack, number) for _, each in group for m in each.members)
    merged = sorted(map(_merged_suspect, groups.values()), key=rank)
    return tuple(merged), sum(found.suspects_left_out for _, found in known)


def _renumbered(suspect: Suspect, part: MergedProcess, locations: Locations) -> Suspect:
    members = tuple(replace(m, stack=int(part.merged[m.stack])) for m in suspect.members)
    frame = suspect.frame
    if frame is not None:
        locations.begin(part.one.target)
        (frame,) = locations.translate(part.one.target, (frame,))
    return replace(suspect, members=members, frame=frame)


def _merged_suspect(found: Sequence[tuple[int, Suspect]]) -> Suspect:
    """Joins (process, suspect) pairs: the worst judgement, with the sum of the rates."""
    if len(found) == 1:
        return found[0][1]
    group = [suspect for _, suspect in found]
    processes = len({number for number, _ in found})
    worst = min(group, key=rank).judgement
    rates: dict[int, float] = {}
    for suspect in group:
        for member in suspect.members:
            rates[member.stack] = rates.get(member.stack, 0.0) + member.rate_bytes_per_min
    rate = sum(each.judgement.rate_bytes_per_min for each in group)
    total = max(sum(rates.values()), 1e-9)
    members = [Member(stack, own, own / total) for stack, own in rates.items()]
    frames = {each.frame for each in group if each.frame is not None}
    judgement = replace(
        worst,
        rate_bytes_per_min=rate,
        since_ns=min(each.judgement.since_ns for each in group),
        evidence=f"{worst.evidence} (the worst of {processes} processes)",
        never_freed=all(each.judgement.never_freed for each in group),
        **{name: sum(getattr(each.judgement, name) for each in group) for name in _SUMMED},
    )
    frame = frames.pop() if len(frames) == 1 and len(members) > 1 else None
    return Suspect(judgement, tuple(sorted(members, key=lambda m: -m.share)), frame)
