"""What was found out about all stacks at one moment: a column per figure, cheap to carry.

Sentences are made when one asks for a stack's judgement, not for thousands of stacks that
nobody looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.units import NS_PER_S
from tracelloc.verdict.judgement import Judgement, Suspect, Verdict
from tracelloc.verdict.sentences import explain
from tracelloc.verdict.sites import VERDICTS, Codes, Sites

I64 = npt.NDArray[np.int64]

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
