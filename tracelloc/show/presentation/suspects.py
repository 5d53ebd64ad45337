"""Names suspects and the functions that their stacks share, and formats their sentences."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import BlockHolders, RootKind
from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import F64, I64
from tracelloc.model.frames import Frame
from tracelloc.model.verdicts import CODE_OF, Judgement, Suspect, Verdict
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.blockholders import retained_by_message
from tracelloc.show.presentation.naming import Namer, frame_name, source_place, stack_title
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_percent,
    format_size,
    plural,
    printable,
    signed_size,
)
from tracelloc.verdict.parameters import P

STACKS_NAMED: Final = 64  # Most stacks named per group, those with the largest shares
_LISTED: Final = 5
_UNSHOWN: Final = "[no caller shown]"
_ITSELF: Final = "[the function itself]"


@dataclass(frozen=True, slots=True)
class PartShare:
    """A caller, a callee or a line of the function that the stacks of a suspect share."""

    name: str  # Name, not yet safe to print
    share: float  # Share of the suspect's rate, 0 to 1


@dataclass(frozen=True, slots=True)
class SharedFunction:
    """The innermost function that a suspect's stacks share; its parts by decreasing share."""

    frame: Frame
    callers: Sequence[PartShare]
    callees: Sequence[PartShare]
    # `FILE:LINE` where the stacks diverge: in the function or in its callers.
    lines: Sequence[PartShare]
    # Whether stacks diverge in the function; otherwise, they share all frames further in.
    parts_inside: bool

    def sentences(self) -> Iterator[str]:
        """Yields sentences on where the stacks diverge, safe to print; none if unknown."""
        if len(self.callers) > 1:
            yield f"called by {_listed(self.callers)}"
        elif len(self.callees) > 1 and _ITSELF not in {part.name for part in self.callees}:
            yield f"through {_listed(self.callees)}"
        elif len(self.lines) > 1:
            lines = [PartShare(base_name(line.name), line.share) for line in self.lines]
            who = "" if self.parts_inside else f"called by {printable(self.callers[0].name)} "
            yield f"{who}at {_listed(lines)}"
        elif len(self.callees) > 1:
            yield f"through {_listed(self.callees)}"


@dataclass(slots=True)
class _Stack:
    named: NamedStack
    share: float
    at: int  # Position of the stack's frame in the shared function

    @property
    def frame(self) -> Frame:
        return self.named.frames[self.at]

    def inner(self) -> Sequence[int]:
        """Positions of the shown frames from the shared one inwards."""
        return [self.at, *(n for n in range(self.at - 1, -1, -1) if not self.named.hidden[n])]

    def beside(self, way: int) -> Frame | None:
        """Returns the next shown frame of another function: ``way`` 1 is outwards, -1 inwards."""
        own, frames = frame_name(self.frame), self.named.frames
        for other in range(self.at + way, len(frames) if way > 0 else -1, way):
            if not self.named.hidden[other] and frame_name(frames[other]) != own:
                return frames[other]
        return None


def shared_function(snapshot: Snapshot, namer: Namer, suspect: Suspect) -> SharedFunction | None:
    """Returns the function that a suspect's stacks share, by the known names, or None."""
    if len(suspect.members) < 2 or suspect.frame is None:
        return None
    stacks = []
    for member in suspect.members[:STACKS_NAMED]:
        named = namer.stack(snapshot, member.stack)
        at = _position(named, suspect.frame)
        if at is not None:
            stacks.append(_Stack(named, member.share, at))
    if not stacks:
        return None
    inner = {tuple(frame.address for frame in each.named.frames[: each.at]) for each in stacks}
    parts_inside = len(inner) > 1
    if parts_inside:
        _step_inwards(stacks)
    own = [(stack.frame if parts_inside else stack.beside(1), stack.share) for stack in stacks]
    return SharedFunction(
        stacks[0].frame,
        callers=_ranked((_name(stack.beside(1), _UNSHOWN), stack.share) for stack in stacks),
        callees=_ranked((_name(stack.beside(-1), _ITSELF), stack.share) for stack in stacks),
        lines=_ranked((_line(frame), share) for frame, share in own),
        parts_inside=parts_inside,
    )


def _position(stack: NamedStack, address: int) -> int | None:
    """Returns the position of the outermost shown frame at an address or inside; else any."""
    found = None
    for at, frame in enumerate(stack.frames):
        if frame.address == address:
            found = at
    if found is None:
        return None
    shown = (at for at in range(found, -1, -1) if not stack.hidden[at])
    return next(shown, found)


def _step_inwards(stacks: Sequence[_Stack]) -> None:
    """Advances to the innermost function that all stacks share.

    Stacks may pass through the function at different addresses, so it may be no shared frame.
    """
    inner = [stack.inner() for stack in stacks]

    def is_shared(at: tuple[int, ...]) -> bool:
        pairs = zip(stacks, at, strict=True)
        return len({frame_name(stack.named.frames[n]) for stack, n in pairs}) == 1

    for deeper in takewhile(is_shared, zip(*inner, strict=False)):
        for stack, at in zip(stacks, deeper, strict=True):
            stack.at = at


def _name(frame: Frame | None, if_none: str) -> str:
    return if_none if frame is None else frame_name(frame)


def _line(frame: Frame | None) -> str | None:
    if frame is None or frame.file is None or frame.line is None:
        return None
    return f"{frame.file}:{frame.line}"


def _ranked(parts: Iterable[tuple[str | None, float]]) -> Sequence[PartShare]:
    shares: defaultdict[str, float] = defaultdict(float)
    for name, share in parts:
        if name is not None:
            shares[name] += share
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(PartShare(name, share) for name, share in ranked)


def _listed(parts: Sequence[PartShare]) -> str:
    shown = [f"{printable(p.name)} {format_percent(p.share, 0)}" for p in parts[:_LISTED]]
    more = len(parts) - len(shown)
    return f"{', '.join(shown)}{f' and {more:,} more' if more else ''}"


_STRONG: Final = 0.9
_SURE: Final = 0.5  # Least confidence at which a leak is reported without *probably*
NOTHING_YET: Final = "no allocations seen yet: is the target idle?"


@dataclass(frozen=True, slots=True)
class NamedSuspect:
    """A suspect with the names of its stacks."""

    suspect: Suspect
    now_ns: int  # Time of the snapshot, CLOCK_MONOTONIC
    time_s: float  # Time of the snapshot, seconds since 1970
    stack: NamedStack  # The stack with the largest share
    shared: SharedFunction | None  # The function that all its stacks share; None for a single stack
    holders: BlockHolders | None = None  # Who holds the suspect's blocks; None: unknown
    collection: str = ""  # What the blocks may be waiting for, as a sentence

    @property
    def judgement(self) -> Judgement:
        return self.suspect.judgement

    @property
    def since_s(self) -> float:
        return max(0, self.now_ns - self.judgement.since_ns) / NS_PER_S


def stacks_to_name(suspects: Sequence[Suspect]) -> set[int]:
    """Returns the stacks that ``name_suspects`` needs names of."""
    return {member.stack for suspect in suspects for member in suspect.members[:STACKS_NAMED]}


def suspects_of(snapshot: Snapshot, n: int | None = None) -> Sequence[Suspect]:
    """Returns the ``n`` strongest suspects; none before the first verdicts."""
    return () if snapshot.findings is None else snapshot.findings.suspects[:n]


def name_suspects(
    snapshot: Snapshot, namer: Namer, suspects: Sequence[Suspect]
) -> list[NamedSuspect]:
    """Returns the suspects with the names known now."""
    return [
        NamedSuspect(
            suspect=suspect,
            now_ns=snapshot.now_ns,
            time_s=snapshot.time_s,
            stack=namer.stack(snapshot, suspect.stack),
            shared=shared_function(snapshot, namer, suspect),
            holders=snapshot.holders.get(suspect.stack),
            collection=_collection(snapshot, snapshot.holders.get(suspect.stack)),
        )
        for suspect in suspects
    ]


def _collection(snapshot: Snapshot, holders: BlockHolders | None) -> str:
    """Returns a sentence if a garbage collector's heap holds blocks: its objects may be garbage."""
    keepers = () if holders is None else holders.keepers[:1]
    is_of_runtime = any(keeper.root.kind is RootKind.RUNTIME for keeper in keepers)
    if not is_of_runtime or not any(each.collects for each in snapshot.runtimes):
        return ""
    figures = None if snapshot.usage is None else snapshot.usage.account.runtime
    used = ""
    if figures is not None:
        used, limit = format_size(figures.used_bytes), format_size(figures.limit_bytes)
        used = f": {used} of at most {limit} were used at the last one"
    return f"blocks of garbage objects are freed after the next collection{used}"


def unsure_growth(snapshot: Snapshot) -> tuple[I64, F64]:
    """Returns (stacks, bytes per minute of each) that grow, too recently to be suspects."""
    findings = snapshot.findings
    if findings is None:
        return np.zeros(0, np.int64), np.zeros(0)
    sites, stacks = findings.sites, len(snapshot.totals)
    is_unsure = sites.confidence < P.suspect_least_confidence
    grows = (findings.codes == CODE_OF[Verdict.GROWING]) & is_unsure
    grows[[stack for stack in findings.suspect_of if stack < len(grows)]] = False
    rows = np.flatnonzero(grows[:stacks])
    return rows, sites.rate_bytes_per_min[rows]


def growth_rates(snapshot: Snapshot) -> I64:
    """Returns stacks' bytes per minute: the verdicts', or else of the last minute."""
    rates = snapshot.growth_per_min.copy()
    for suspect in suspects_of(snapshot):
        for member in suspect.members:
            rates[member.stack] = round(member.rate_bytes_per_min)
    stacks, unsure = unsure_growth(snapshot)
    rates[stacks] = np.rint(unsure)
    return rates


def suspect_ranks(snapshot: Snapshot) -> I64:
    """Returns each stack's rank: leaking, growing, lost, all others, those from before tracing."""
    suspects = suspects_of(snapshot)
    rows, rates = unsure_growth(snapshot)
    judgements = [each.judgement for each in suspects]
    only_grow = [each.verdict is not Verdict.LEAKING for each in judgements]
    every_rate = np.append([each.rate_bytes_per_min for each in judgements], rates)
    order = np.lexsort((-every_rate, np.append(only_grow, np.ones(len(rows), np.bool_))))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ranks = np.full(len(snapshot.totals), len(order) + 1, np.int64)
    ranks[snapshot.are_earlier] = len(order) + 2
    if snapshot.findings is not None:
        codes = snapshot.findings.codes[: len(ranks)]
        ranks[: len(codes)][codes == CODE_OF[Verdict.LOST]] = len(order)
    ranks[rows] = place[len(suspects) :]
    for suspect, rank in zip(suspects, place.tolist(), strict=False):
        ranks[[member.stack for member in suspect.members]] = rank
    return ranks


def headline(judgement: Judgement, now_ns: int, *, about: str = "") -> str:
    """Formats ``leaking 9.50 KiB/min for 10 m, evidence: strong``; with little: ``probably``."""
    since_s = max(0, now_ns - judgement.since_ns) / NS_PER_S
    confidence = judgement.confidence
    # Words, as a confidence is no probability.
    evidence = "strong" if confidence >= _STRONG else "fair" if confidence >= _SURE else "weak"
    word = judgement.verdict.value
    if judgement.verdict is Verdict.LEAKING:
        sure = f", evidence: {evidence}"
        word = f"probably {word}" if confidence < _SURE else word
    else:
        sure = ", possible leak" + (f" (evidence: {evidence})" if confidence else "")
    return (
        f"{word} {about}{format_size(round(judgement.rate_bytes_per_min))}/min "
        f"for {format_duration(since_s)}{sure}"
    )


def sentences(named: NamedSuspect) -> Iterator[str]:
    """Yields sentences on a suspect: reasons, and what its stacks share; safe to print."""
    judgement = named.judgement
    yield judgement.evidence
    if named.holders is not None:
        yield from retained_by_message(named.holders, named.time_s)
    if named.collection:
        yield named.collection
    if judgement.retracted:
        yield f"verdict leaking retracted {plural(judgement.retracted, 'time')} before"
    if named.shared is not None:
        name = printable(frame_name(named.shared.frame))
        yield f"sum of {len(named.suspect.members):,} stacks that share {name}"
        yield from named.shared.sentences()


def verdict_counts(snapshot: Snapshot) -> tuple[int | None, int | None]:
    """Counts suspects (leaking, growing), object types included; None before the first verdict."""
    findings = snapshot.findings
    if findings is None:
        return None, None
    types = () if snapshot.objects is None else snapshot.objects.suspects
    verdicts = [s.judgement.verdict for s in findings.suspects] + [t.verdict for t in types]
    if not verdicts and findings.moment.watched_s < P.first_verdict_s:
        return None, None
    leaking = verdicts.count(Verdict.LEAKING)
    return leaking, len(verdicts) - leaking + findings.suspects_left_out


def lost_bytes(snapshot: Snapshot) -> tuple[int, int]:
    """Returns bytes to which nothing points: (allocated while tracing, before tracing)."""
    if snapshot.findings is None:
        return 0, 0
    sites = snapshot.findings.sites
    lost = np.where(sites.have([Verdict.LOST, Verdict.LEAKING]), sites.unreachable_bytes, 0.0)
    before = lost[np.flatnonzero(snapshot.are_earlier[: len(lost)])].sum()
    return round(float(lost.sum() - before)), round(float(before))


def suppressed_line(snapshot: Snapshot) -> str | None:
    """Formats the leaks that the user's suppressions hide; None if there are none."""
    suppressed = None if snapshot.findings is None else snapshot.findings.suppressed
    if suppressed is None or not suppressed.stacks:
        return None
    return (
        f"suppressed {plural(suppressed.stacks, 'suspect stack')}: "
        f"{format_size(round(suppressed.rate_bytes_per_min))}/min, "
        f"{format_size(suppressed.live_bytes)} live"
    )


def folded_title(label: str, count: int) -> str:
    """Formats stacks with equal names: ``make_pair (pair.c:41) ×4 stacks ← load``."""
    first, arrow, rest = label.partition(" ← ")
    return f"{first} ×{count:,} stacks{arrow}{rest}"


def suspect_title(
    stack: NamedStack | None, labels: Iterable[str], shared: SharedFunction | None, count: int
) -> str:
    """Formats a suspect: ``make_pair (4 stacks, pair.c:41)``, or its label if all are equal."""
    label, *others = labels
    if others and len(others) == count - 1 and all(other == label for other in others):
        return folded_title(label, count)
    plain = [] if stack is None else stack.parts()
    names = {frame_name(each.frame) for each in plain if each.frame is not None and not each.label}
    if shared is None or frame_name(shared.frame) not in names:
        # If filters hide the shared frame (a wrapper or runtime), the stack's own name says more.
        name, _, _ = label.partition(" ← ")
        return f"{name.partition(' (')[0]} ({count} stacks)"
    place, symbol = source_place(shared.frame), shared.frame.symbol
    name = frame_name(shared.frame) if symbol is None else shorten(symbol)
    return f"{name} ({count} stacks{f', {place}' if place else ''})"


def parting_lines(snapshot: Snapshot, namer: Namer, most: int) -> Iterator[str]:
    """Yields a line for each of the strongest suspects: ``leaking: name (file:line), figures``."""
    suspects = suspects_of(snapshot)
    chosen = suspects[:most]
    namer.prepare(snapshot, stacks_to_name(chosen), namer.patience_s)
    about = about_of(snapshot.sample_bytes)
    for named in name_suspects(snapshot, namer, chosen):
        members = [member.stack for member in named.suspect.members]
        live = format_size(int(snapshot.totals.live_bytes[members].sum()))
        shown = members[:STACKS_NAMED]
        titles = [stack_title(namer.stack(snapshot, n), n, with_line=True) for n in shown]
        title = titles[0]
        if len(members) > 1:
            title = suspect_title(named.stack, titles, named.shared, len(members))
        verdict, rate = named.judgement.verdict.value, named.judgement.rate_bytes_per_min
        yield f"{verdict}: {printable(title)}, {about}{live}, {signed_size(round(rate))}/min"
    if left_out := len(suspects) - len(chosen):
        yield plural(left_out, "more suspect")
    if lost := lost_bytes(snapshot)[1]:
        yield f"{Verdict.LOST.value}: {format_size(lost)} from before tracing"
    if not suspects and snapshot.elapsed_ns >= P.unreachable_first_s * NS_PER_S:
        yield from _growing_lines(snapshot, namer, most)


def _growing_lines(snapshot: Snapshot, namer: Namer, most: int) -> Iterator[str]:
    """Yields a line for each of the names that grow most, too recently to be suspects."""
    stacks, rates = unsure_growth(snapshot)
    order = np.argsort(-rates, kind="stable")[:STACKS_NAMED]
    namer.prepare(snapshot, set(stacks[order].tolist()), namer.patience_s)
    about = about_of(snapshot.sample_bytes)
    named: dict[str, list[int]] = {}
    for at in order.tolist():
        stack = int(stacks[at])
        title = stack_title(namer.stack(snapshot, stack), stack, with_line=True)
        named.setdefault(title, []).append(at)
    for label, rows in list(named.items())[:most]:
        title = folded_title(label, len(rows)) if len(rows) > 1 else label
        live = format_size(int(snapshot.totals.live_bytes[stacks[rows]].sum()))
        rate = signed_size(round(float(rates[rows].sum())))
        yield f"{Verdict.GROWING.value}: {printable(title)}, {about}{live}, {rate}/min"


def silence_line(snapshot: Snapshot) -> str | None:
    """Returns a line if nothing was allocated at all; else None."""
    if snapshot.events:
        return None
    return "no allocations were seen" if snapshot.target.has_ended else NOTHING_YET
