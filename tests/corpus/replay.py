"""Feeds a program's blocks to the live table as events, and notes the verdicts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.corpus.streams import Stream
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind, Events
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import Findings, Suspect, Verdict
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judge import Judge, KnownLosses

START_NS = 1000 * NS_PER_S
TICK_S = 1.0
LOOK_S = 5.0


def events_of(streams: list[Stream], end_s: float) -> Events:
    """All births and deaths between 0 and ``end_s`` in their order; stack id n + 1 is the
    n-th stream's.
    """
    columns = []
    address = 0x7F00_0000_0000
    for number, stream in enumerate(streams):
        count = len(stream.birth)
        where = np.uint64(address) + np.uint64(16) * np.arange(count, dtype=np.uint64)
        address += 16 * count
        born = (stream.birth >= 0) & (stream.birth < end_s)
        died = (stream.death >= 0) & (stream.death < end_s) & (stream.birth < end_s)
        columns.append((stream.birth[born], where[born], stream.size[born], number + 1,
                        EventKind.ALLOC))  # fmt: skip
        columns.append((stream.death[died], where[died], np.zeros(died.sum()), 0, EventKind.FREE))
    events = np.zeros(sum(len(times) for times, *_ in columns), EVENT_DTYPE)
    at = 0
    for times, where, size, stack_id, kind in columns:
        rows = events[at : at + len(times)]
        rows["time_ns"] = (times * NS_PER_S).astype(np.uint64) + np.uint64(START_NS)
        rows["address"] = where
        rows["size_tag"] = size.astype(np.uint64) | np.uint64(kind << EVENT_SIZE_BITS)
        rows["stack_id"] = stack_id
        rows["tid"] = rows["image"] = 1
        at += len(times)
    return events[np.argsort(events["time_ns"], kind="stable")]


@dataclass(frozen=True)
class Truth:
    """What a leak really does."""

    onset_s: float
    rate_bytes_per_min: float
    never_freed: bool


def truths(sites: dict[str, Stream], end_s: float) -> dict[int, Truth]:
    """The leaks of a program, by stack."""
    found = {}
    for stack, stream in enumerate(sites.values(), start=1):
        leaked = stream.is_leaked() & (stream.birth >= 0) & (stream.birth < end_s)
        if leaked.any():
            onset_s = float(stream.birth[leaked].min())
            rate = float(stream.size[leaked].sum()) / (end_s - onset_s) * 60
            found[stack] = Truth(onset_s, rate, bool(stream.is_leaked().all()))
    return found


@dataclass
class Course:
    """What was said of each stack, look by look."""

    times_s: list[float] = field(default_factory=list)
    verdicts: list[list[Verdict]] = field(default_factory=list)  # Per look, by stack index
    suspects: list[list[Suspect]] = field(default_factory=list)
    findings: Findings | None = None  # The last look's

    def first(self, stack: int, among: set[Verdict], after_s: float = 0.0) -> float | None:
        """When a stack first got one of these verdicts."""
        for time_s, verdicts in zip(self.times_s, self.verdicts, strict=True):
            if time_s >= after_s and stack < len(verdicts) and verdicts[stack] in among:
                return time_s
        return None

    def lasting(self, stack: int, among: set[Verdict]) -> float | None:
        """From when on it had one of these to the end."""
        since = None
        for time_s, verdicts in zip(self.times_s, self.verdicts, strict=True):
            fits = stack < len(verdicts) and verdicts[stack] in among
            since = (since if since is not None else time_s) if fits else None
        return since


def looks(
    events: Events,
    stacks: Stacks,
    end_s: float,
    *,
    address_reuses: int = 0,
    lost_at_s: float | None = None,
    frees_lost_per_s: float = 0.0,
    sample_bytes: int | None = None,
    search: Callable[[float, LiveTable], UnreachableBlocks | None] = lambda *_: None,
    resident: Callable[[float], int] = lambda _: 0,
    collection: tuple[bool, bool] = (False, False),
) -> Iterator[tuple[float, LiveTable, Findings]]:
    """Applies the events tick by tick. Yields (time, table, findings) at each look.

    ``address_reuses`` proves from the start that frees are lost; at ``lost_at_s``
    an event is found to be lost; ``frees_lost_per_s`` are lost on and on. With
    ``sample_bytes``, the events are samples. ``search`` is asked at each tick what has been
    found of pointers to blocks, ``resident`` how large the process is, in bytes.
    ``collection``: whether a garbage collector frees blocks, and moves objects.
    """
    table = LiveTable(stacks, sample_bytes)
    table.cohorts.begin(START_NS)
    judge = Judge()
    ticks = np.arange(TICK_S, end_s + TICK_S / 2, TICK_S)
    cuts = np.searchsorted(events["time_ns"], (ticks * NS_PER_S).astype(np.uint64) + START_NS)
    before = 0
    for tick, cut in zip(ticks.tolist(), cuts.tolist(), strict=True):
        table.apply(events[before:cut])
        before = cut
        unreachable = search(tick, table)
        if tick % LOOK_S < TICK_S / 2:
            now_ns = START_NS + int(tick * NS_PER_S)
            lost = int(lost_at_s is not None and tick >= lost_at_s)
            lost += round(frees_lost_per_s * tick)
            losses = KnownLosses(lost, lost, address_reuses)
            *_, findings = judge.judge_stacks(
                table.cohorts,
                table.totals,
                stacks,
                now_ns,
                losses,
                unreachable=unreachable,
                resident_bytes=resident(tick),
                collection=collection,
            )
            if findings is not None:
                yield tick, table, findings


def contradictions(findings: Findings, table: LiveTable) -> Iterator[str]:
    """Figures of suspects that can't be true together."""
    for suspect in findings.suspects:
        judged = suspect.judgement
        since_s = (findings.moment.now_ns - judged.since_ns) / NS_PER_S
        stacks = [member.stack for member in suspect.members]
        live = float(table.totals.live_bytes[stacks].sum())
        if since_s > findings.moment.watched_s + 1e-6:
            yield "since before tracing began"
        if judged.rate_bytes_per_min * since_s / 60 > 1.1 * live + 1024:
            yield "rate x time above the suspect's live bytes"
        if judged.verdict is Verdict.LEAKING:
            for name in ("confidence", "survivors", "rate_bytes_per_min"):
                if getattr(judged, name) <= 0:
                    yield f"called with no {name}"
        if abs(sum(m.rate_bytes_per_min for m in suspect.members) - judged.rate_bytes_per_min) > (
            0.01 * judged.rate_bytes_per_min + 1
        ):
            yield "members' rates do not add up"


def stacks_of(names: list[str]) -> Stacks:
    """Stacks 1 and up, named FUNCTION or FUNCTION/CALLER: equal names, equal frames."""
    stacks = Stacks()
    addresses: dict[str, int] = {}
    for stack_id, name in enumerate(names, start=1):
        frames = tuple(
            addresses.setdefault(part, 0x400000 + 16 * len(addresses)) for part in name.split("/")
        )
        stacks.add(stack_id, (*frames, 0x401000), StackFlag(0))
    return stacks


def watch(sites: dict[str, Stream], end_s: float, **how: Any) -> Course:
    """The whole course of a program; stack n + 1 is the n-th site's. See ``looks``."""
    return course_of(events_of(list(sites.values()), end_s), stacks_of(list(sites)), end_s, **how)


def course_of(events: Events, stacks: Stacks, end_s: float, **how: Any) -> Course:
    """The whole course of a stream of events. See ``looks``."""
    course = Course()
    for time_s, _table, findings in looks(events, stacks, end_s, **how):
        course.times_s.append(time_s)
        course.verdicts.append([findings.verdict(n) for n in range(len(findings.codes))])
        course.suspects.append(list(findings.suspects))
        course.findings = findings
    return course
