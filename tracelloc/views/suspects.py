"""Suspects by name: who calls what leaks, and what it calls there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.filters import NamedStack
from tracelloc.heap.totals import I64
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import Frame
from tracelloc.text import (
    NS_PER_S,
    format_duration,
    format_percent,
    format_size,
    plural,
    printable,
)
from tracelloc.verdict.judgement import CODE_OF, Codes, Judgement, Suspect, Verdict
from tracelloc.verdict.parameters import P
from tracelloc.views.naming import Namer, frame_name

_CALLERS_LISTED: Final = 5
_STACKS_NAMED: Final = 64
"""Stacks of a group that are named for their callers: those with the largest shares."""


@dataclass(frozen=True, slots=True)
class FunctionShare:
    """A caller or callee of the function that the stacks of a suspect share."""

    name: str
    """Not harmless yet."""
    share: float
    """Share of the suspect's rate, 0 to 1."""


@dataclass(frozen=True, slots=True)
class NamedSuspect:
    """A suspect with names."""

    suspect: Suspect
    now_ns: int
    """When this was said, CLOCK_MONOTONIC."""
    stack: NamedStack
    """The one with the largest share."""
    shared: Frame | None
    """The outermost frame that all its stacks share; None for a single stack."""
    callers: Sequence[FunctionShare]
    """Callers of the shared frame, the largest share first; empty for a single stack."""
    callees: Sequence[FunctionShare]
    """Functions that the shared frame calls."""

    @property
    def judgement(self) -> Judgement:
        """The judgement of the suspect."""
        return self.suspect.judgement

    @property
    def since_s(self) -> float:
        """For how many seconds it has been growing."""
        return max(0, self.now_ns - self.judgement.since_ns) / NS_PER_S


def stacks_to_name(suspects: Sequence[Suspect]) -> set[int]:
    """The stacks of which ``name_suspects`` wants names."""
    return {member.stack for suspect in suspects for member in suspect.members[:_STACKS_NAMED]}


def suspects_of(snapshot: Snapshot, n: int | None = None) -> Sequence[Suspect]:
    """The ``n`` best; none before there was time to look."""
    return () if snapshot.findings is None else snapshot.findings.suspects[:n]


def name_suspects(
    snapshot: Snapshot, namer: Namer, suspects: Sequence[Suspect]
) -> list[NamedSuspect]:
    """Names suspects, as far as names are known by now."""
    found = []
    for suspect in suspects:
        stack = namer.stack(snapshot, suspect.stack)
        shared = suspect.frame if len(suspect.members) > 1 else None
        at = None if shared is None else _position(stack, shared)
        found.append(
            NamedSuspect(
                suspect=suspect,
                now_ns=snapshot.now_ns,
                stack=stack,
                shared=None if at is None else stack.frames[at],
                callers=() if at is None else _beside(snapshot, namer, suspect, 1),
                callees=() if at is None else _beside(snapshot, namer, suspect, -1),
            )
        )
    return found


def _position(stack: NamedStack, address: int) -> int | None:
    """Position of the outermost shown frame at this address or further in; else of any frame."""
    found = None
    for at, frame in enumerate(stack.frames):
        if frame.address == address:
            found = at
    if found is None:
        return None
    shown = (at for at in range(found, -1, -1) if not stack.hidden[at])
    return next(shown, found)


def _beside(
    snapshot: Snapshot, namer: Namer, suspect: Suspect, way: int
) -> Sequence[FunctionShare]:
    """Functions next to the shared frame: ``way`` 1 is outwards, -1 inwards."""
    assert suspect.frame is not None
    shares: defaultdict[str, float] = defaultdict(float)
    for member in suspect.members[:_STACKS_NAMED]:
        stack = namer.stack(snapshot, member.stack)
        at = _position(stack, suspect.frame)
        if at is not None:
            shares[_next_shown(stack, at, way)] += member.share
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(FunctionShare(name, share) for name, share in ranked)


def _next_shown(stack: NamedStack, at: int, way: int) -> str:
    """The next frame that is shown, in another function."""
    own = frame_name(stack.frames[at])
    for other in range(at + way, len(stack.frames) if way > 0 else -1, way):
        if not stack.hidden[other] and frame_name(stack.frames[other]) != own:
            return frame_name(stack.frames[other])
    return "[nothing shown]"


def verdict_codes(snapshot: Snapshot) -> Codes | None:
    """Per stack an index of ``judgement.VERDICTS``, as ``Findings.verdict``; None before a look."""
    findings = snapshot.findings
    if findings is None:
        return None
    codes = np.full(len(snapshot.totals), CODE_OF[Verdict.DECIDING])
    known = findings.codes[: len(codes)]
    codes[: len(known)] = known
    for suspect in findings.suspects:
        stacks = [member.stack for member in suspect.members]
        codes[stacks] = CODE_OF[suspect.judgement.verdict]
    return codes


def suspect_ranks(snapshot: Snapshot) -> I64:
    """Per stack the place of its suspect in their order; those of no suspect come after all."""
    suspects = suspects_of(snapshot)
    ranks = np.full(len(snapshot.totals), len(suspects), np.int64)
    for rank, suspect in enumerate(suspects):
        ranks[[member.stack for member in suspect.members]] = rank
    return ranks


def headline(judgement: Judgement, now_ns: int, *, about: str = "") -> str:
    """Formats ``leaking 9.50 KiB/min for 10 m, confidence 97 %``; ``about`` marks estimates."""
    since_s = max(0, now_ns - judgement.since_ns) / NS_PER_S
    confidence = format_percent(judgement.confidence, 0)
    if judgement.verdict is Verdict.LEAKING:
        sure = f", confidence {confidence}"
    else:
        sure = ", possible leak" + (f" ({confidence})" if judgement.confidence else "")
    return (
        f"{judgement.verdict.value} {about}{format_size(round(judgement.rate_bytes_per_min))}/min "
        f"for {format_duration(since_s)}{sure}"
    )


def sentences(named: NamedSuspect) -> Iterator[str]:
    """Why, and what a group shares, harmless to print."""
    judgement = named.judgement
    yield judgement.evidence
    if judgement.retracted:
        times = plural(judgement.retracted, "time")
        yield f"verdict leaking retracted {times} before"
    if named.shared is None:
        return
    count = len(named.suspect.members)
    rate = format_size(round(judgement.rate_bytes_per_min))
    yield f"these {count} stacks share {printable(frame_name(named.shared))}: {rate}/min"
    for how, others in (("called by", named.callers), ("through", named.callees)):
        if len(others) > 1:
            listed = [
                f"{printable(c.name)} {format_percent(c.share, 0)}"
                for c in others[:_CALLERS_LISTED]
            ]
            more = len(others) - len(listed)
            yield f"{how} {', '.join(listed)}{f' and {more} more' if more else ''}"


def summary_line(suspects: Sequence[Suspect], shown: int, left_out: int) -> str:
    """Formats ``2 leak suspects out of 7: 2 leaking``. ``left_out``: known by number only."""
    out_of = f" out of {len(suspects) + left_out}" if shown < len(suspects) + left_out else ""
    leaking = sum(s.judgement.verdict is Verdict.LEAKING for s in suspects)
    growing = len(suspects) + left_out - leaking
    kinds = [f"{leaking} leaking"] * (leaking > 0) + [f"{growing} growing"] * (growing > 0)
    return f"{plural(shown, 'leak suspect')}{out_of}: {', '.join(kinds)}"


def suppressed_line(snapshot: Snapshot) -> str | None:
    """What the user's suppressions hide; None if they hide nothing."""
    suppressed = None if snapshot.findings is None else snapshot.findings.suppressed
    if suppressed is None or not suppressed.stacks:
        return None
    return (
        f"suppressed {plural(suppressed.stacks, 'suspect stack')}: "
        f"{format_size(round(suppressed.rate_bytes_per_min))}/min, "
        f"{format_size(suppressed.live_bytes)} live"
    )


def nobody_line(snapshot: Snapshot) -> str | None:
    """One line if there is no suspect; None before the first verdicts."""
    findings = snapshot.findings
    if findings is None or findings.suspects:
        return None
    left_s = P.first_verdict_s - findings.moment.watched_s
    if left_s > 0:
        return f"no leak suspects yet, first verdict in {format_duration(max(1, round(left_s)))}"
    return "no leak suspects so far"
