"""What was found out about all stacks at one moment, and the list of suspects.

A column per figure is cheap to carry. Sentences are made when one asks for a stack's
judgement, not for thousands of stacks that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import F64, I64, Census
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judgement import (
    CODE_OF,
    VERDICTS,
    Codes,
    Judgement,
    Member,
    Sites,
    Suspect,
    Verdict,
)
from tracelloc.verdict.rule import Rows
from tracelloc.verdict.sentences import explain

_NOT_LOOKED_AT: Final = Judgement(
    verdict=Verdict.WATCHING,
    rate_bytes_per_min=0.0,
    since_ns=0,
    confidence=0.0,
    evidence="not looked at yet",
    watch_more_s=0.0,
    never_freed=False,
    survivors=0,
    taken_back=0,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """When stacks were judged, and by what. Times are CLOCK_MONOTONIC."""

    start_ns: int
    """When tracing began."""
    now_ns: int
    sampled: bool = False
    """Only samples of the blocks are known."""

    @property
    def watched_s(self) -> float:
        """How long it had been traced."""
        return (self.now_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What suspects that are put up with are together."""

    stacks: int
    rate_bytes_per_min: float
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Verdicts of all stacks by index, and the suspects. Nothing in it changes any more."""

    moment: Moment
    suspects: tuple[Suspect, ...]
    """The best first. A stack is in one of them at most."""
    suspects_left_out: int
    """How many more there are."""
    suspect_of: Mapping[int, Suspect]
    """By stack, the suspect that it is part of."""
    sites: Sites
    """One per stack."""
    taken_back: I64
    """Per stack, how often it was called leaking and then no longer."""
    suppressed: Suppressed | None = None
    """Suspects that were left out because the user puts up with them; None: nobody asked to."""

    @property
    def codes(self) -> Codes:
        """Per stack, looked at by itself, an index of ``sites.VERDICTS``."""
        return self.sites.code

    def verdict(self, stack: int) -> Verdict:
        """Of one stack; ``WATCHING`` for those that are newer than the findings.

        A stack that is part of a leak which is split over several is leaking.
        """
        suspect = self.suspect_of.get(stack)
        if suspect is not None:
            return suspect.judgement.verdict
        return VERDICTS[self.codes[stack]] if stack < len(self.codes) else Verdict.WATCHING

    def judgement(self, stack: int) -> Judgement:
        """Of one stack, with its sentence; as part of a suspect, that one's with its own rate."""
        suspect = self.suspect_of.get(stack)
        if suspect is not None:
            member = next(member for member in suspect.members if member.stack == stack)
            return replace(suspect.judgement, rate_bytes_per_min=member.rate_bytes_per_min)
        if stack >= len(self.codes):
            return _NOT_LOOKED_AT
        return judgement_of(self.sites, stack, self.moment, int(self.taken_back[stack]))


def judgement_of(sites: Sites, row: int, moment: Moment, taken_back: int) -> Judgement:
    """A site's figures and its sentence."""
    return Judgement(
        verdict=VERDICTS[sites.code[row]],
        rate_bytes_per_min=float(sites.rate_bytes_per_min[row]),
        since_ns=moment.start_ns + round(float(sites.since_s[row]) * NS_PER_S),
        confidence=float(sites.confidence[row]),
        evidence=explain(sites, row, moment.watched_s, sampled=moment.sampled),
        watch_more_s=float(sites.watch_more_s[row]),
        never_freed=bool(sites.never_freed[row]),
        survivors=round(float(sites.survivors[row])),
        taken_back=taken_back,
    )


_LEAST_CONFIDENCE: Final = 0.05
"""For ranking: what has none (its floor rises) counts for so much."""


@dataclass(frozen=True, slots=True)
class Group:
    """Stacks that are judged as one."""

    sites: Sites
    """One row."""
    stacks: Rows
    bytes_kept: F64
    """Of each stack, since the group grows."""
    frame: int | None
    """Return address that they share."""
    taken_back: int
    sharing: int
    """How many stacks share the frame, those included that have no part in this."""

    @property
    def rate_bytes_per_min(self) -> float:
        """At which they leak together."""
        return float(self.sites.rate_bytes_per_min[0])

    @classmethod
    def of(
        cls, census: Census, stacks: Rows, sites: Sites, frame: int | None, taken_back: int
    ) -> Group:
        """Stacks with their judgement as one."""
        # The share of each slice that is newer than the onset; births are spread evenly.
        begin, end = census.edges_s[:-1], census.edges_s[1:]
        since = np.clip((end - sites.since_s[0]) / (end - begin), 0, 1)
        kept = since @ census.alive_bytes[:, stacks]
        return cls(sites, stacks, kept, frame, taken_back, len(stacks))


def list_suspects(
    sites: Sites, groups: list[Group], taken_back: I64, moment: Moment, most: int
) -> tuple[tuple[Suspect, ...], int]:
    """All that leaks, then all that grows; by rate, weighted by confidence.

    Returns the first ``most`` of them, and how many more there are.
    """
    suspects = [_of_group(group, moment) for group in groups]
    grouped = np.concatenate([np.empty(0, np.intp), *(group.stacks for group in groups)])
    codes = [CODE_OF[Verdict.LEAKING], CODE_OF[Verdict.GROWING]]
    rows = np.setdiff1d(np.flatnonzero(np.isin(sites.code, codes)), grouped)
    weight = sites.rate_bytes_per_min[rows] * np.maximum(sites.confidence[rows], _LEAST_CONFIDENCE)
    order = np.lexsort((rows, -weight, sites.code[rows] != CODE_OF[Verdict.LEAKING]))
    # There may be thousands: only those are described that can be among the first.
    for row in rows[order[:most]].tolist():
        judgement = judgement_of(sites, row, moment, int(taken_back[row]))
        member = Member(row, judgement.rate_bytes_per_min, 1.0)
        suspects.append(Suspect(judgement, (member,), None))
    left_out = max(0, len(groups) + len(rows) - most)
    return tuple(sorted(suspects, key=rank)[:most]), left_out


def _of_group(group: Group, moment: Moment) -> Suspect:
    judgement = judgement_of(group.sites, 0, moment, group.taken_back)
    shares = group.bytes_kept / max(float(group.bytes_kept.sum()), 1.0)
    members = tuple(
        Member(
            int(group.stacks[at]),
            float(shares[at]) * judgement.rate_bytes_per_min,
            float(shares[at]),
        )
        for at in np.argsort(-shares, kind="stable").tolist()
        if shares[at] > 0
    )
    return Suspect(judgement, members, group.frame)


def rank(suspect: Suspect) -> tuple[bool, float]:
    """The key by which suspects are sorted, the best first."""
    judgement = suspect.judgement
    weight = judgement.rate_bytes_per_min * max(judgement.confidence, _LEAST_CONFIDENCE)
    return judgement.verdict is not Verdict.LEAKING, -weight
