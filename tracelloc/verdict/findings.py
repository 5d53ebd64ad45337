"""What was found out about all stacks at one moment: a column per figure, cheap to carry.

Sentences are made when one asks for a stack's judgement, not for thousands of stacks that
nobody looks at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.units import NS_PER_S
from tracelloc.verdict.judgement import Judgement, Suspect, Verdict
from tracelloc.verdict.sentences import explain
from tracelloc.verdict.sites import CODE_OF, VERDICTS, Codes, Sites

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
class Findings:
    """Verdicts of all stacks by index, and the suspects. Nothing in it changes any more."""

    time_ns: int
    """When stacks were judged, CLOCK_MONOTONIC; 0: not yet."""
    start_ns: int
    """When tracing began."""
    codes: Codes
    """Per stack, an index of ``VERDICTS``."""
    suspects: tuple[Suspect, ...]
    """The best first. A stack is in one of them at most."""
    suspects_left_out: int
    """How many more there are."""
    sites: Sites
    """One per stack."""
    taken_back: I64
    """Per stack, how often it was called leaking and then no longer."""

    def verdict(self, stack: int) -> Verdict:
        """Of one stack; ``WATCHING`` for those that are newer than the findings."""
        return VERDICTS[self.codes[stack]] if stack < len(self.codes) else Verdict.WATCHING

    def having(self, verdict: Verdict) -> npt.NDArray[np.intp]:
        """The indices of all stacks with this verdict."""
        return np.flatnonzero(self.codes == CODE_OF[verdict])

    def judgement(self, stack: int) -> Judgement:
        """Of one stack, with its sentence."""
        if stack >= len(self.codes):
            return _NOT_LOOKED_AT
        return judgement_of(
            self.sites, stack, self.start_ns, self.time_ns, int(self.taken_back[stack])
        )


def judgement_of(sites: Sites, row: int, start_ns: int, now_ns: int, taken_back: int) -> Judgement:
    """A site's figures and its sentence. Times on CLOCK_MONOTONIC."""
    return Judgement(
        verdict=VERDICTS[sites.code[row]],
        rate_bytes_per_min=float(sites.rate_bytes_per_min[row]),
        since_ns=start_ns + round(float(sites.since_s[row]) * NS_PER_S),
        confidence=float(sites.confidence[row]),
        evidence=explain(sites, row, (now_ns - start_ns) / NS_PER_S),
        watch_more_s=float(sites.watch_more_s[row]),
        never_freed=bool(sites.never_freed[row]),
        survivors=round(float(sites.survivors[row])),
        taken_back=taken_back,
    )
