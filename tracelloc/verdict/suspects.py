"""The list of suspects: groups of stacks and single ones, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import F64, I64, Census
from tracelloc.verdict.findings import Moment, judgement_of
from tracelloc.verdict.judgement import Member, Suspect, Verdict
from tracelloc.verdict.rule import Rows
from tracelloc.verdict.sites import CODE_OF, Sites

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
