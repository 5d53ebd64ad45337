"""Judges all stacks every few seconds, and remembers what it said before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.stacks import Stacks
from tracelloc.totals import Totals
from tracelloc.units import NS_PER_S
from tracelloc.verdict.cohorts import F64, Cohorts, Population
from tracelloc.verdict.findings import Findings, judgement_of
from tracelloc.verdict.judgement import Member, Suspect, Verdict
from tracelloc.verdict.loss import Gaps, common_share
from tracelloc.verdict.sites import CODE_OF, Circumstances, Sites, judge_sites

JUDGE_EVERY_NS: Final = 5 * NS_PER_S
_HOLD_NS: Final = 9 * NS_PER_S
"""A leak has to hold on two looks so far apart."""
_MOST_SUSPECTS: Final = 200
_SETTLED_S: Final = 30.0
"""Blocks older than this tell what is lost."""
_LEAKING: Final = CODE_OF[Verdict.LEAKING]
_GROWING: Final = CODE_OF[Verdict.GROWING]


@dataclass(frozen=True, slots=True)
class Losses:
    """What is known to be missing since the start."""

    events: int
    """Lost allocations, frees and restores."""
    frees: int
    """Of these, frees."""
    address_reuses: int
    """Addresses that were handed out and not seen to be freed."""

    @property
    def proven(self) -> bool:
        """Whether anything is missing at all."""
        return self.events > 0 or self.address_reuses > 0


NO_LOSSES: Final = Losses(0, 0, 0)


class Judge:
    """One per table. Not thread safe."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self._due_ns = 0
        # Per stack: since when it looks like a leak (0: it does not), whether it was called
        # leaking last, and how often that was taken back.
        self._looks_since_ns = np.zeros(64, np.int64)
        self._called = np.zeros(64, np.bool_)
        self._taken_back = np.zeros(64, np.int64)

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for another look."""
        return now_ns >= self._due_ns

    def judge(
        self,
        cohorts: Cohorts,
        totals: Totals,
        stacks: Stacks,
        now_ns: int,
        losses: Losses = NO_LOSSES,
    ) -> Findings | None:
        """Looks at all stacks. None while nothing has happened."""
        self._due_ns = now_ns + JUDGE_EVERY_NS
        if cohorts.start_ns is None:
            return None
        count = len(stacks)
        cohorts.grow(count)
        self._grow(count)
        cohorts.advance(now_ns, totals.live_bytes)
        population = cohorts.population(now_ns, np.arange(count))
        self._gaps.note(losses.events, now_ns)
        clean_ns = self._gaps.clean_from_ns() or cohorts.start_ns
        freed = int(totals.freed_count.sum())
        circumstances = Circumstances(
            loss_share=losses.frees / max(freed, 1) if self._gaps.last else 0.0,
            loss_floor=_loss_floor(population, losses.proven),
            clean_from_s=(clean_ns - cohorts.start_ns) / NS_PER_S,
        )
        sites = self._remember(judge_sites(population, circumstances), now_ns)
        suspects, left_out = _suspects(sites, cohorts.start_ns, now_ns, self._taken_back)
        return Findings(
            time_ns=now_ns,
            start_ns=cohorts.start_ns,
            codes=sites.code,
            suspects=suspects,
            suspects_left_out=left_out,
            sites=sites,
            taken_back=self._taken_back[:count].copy(),
        )

    def _grow(self, stacks: int) -> None:
        if stacks <= len(self._called):
            return
        more = max(stacks, 2 * len(self._called)) - len(self._called)
        for name in ("_looks_since_ns", "_called", "_taken_back"):
            column = getattr(self, name)
            setattr(self, name, np.append(column, np.zeros(more, column.dtype)))

    def _remember(self, sites: Sites, now_ns: int) -> Sites:
        """What looks like a leak for the first time is only growing."""
        count = len(sites)
        looks = sites.code == _LEAKING
        since = self._looks_since_ns[:count]
        since[~looks] = 0
        since[looks & (since == 0)] = now_ns
        called = looks & (now_ns - since >= _HOLD_NS)
        self._taken_back[:count] += self._called[:count] & ~called
        self._called[:count] = called
        return replace(sites, code=np.where(looks & ~called, _GROWING, sites.code))


def _loss_floor(population: Population, losses: bool) -> F64:
    if not losses:
        return np.zeros(len(population.born))
    settled = population.edges_s[1:] <= population.now_s - _SETTLED_S
    return common_share(
        population.alive[:, settled].sum(axis=1), population.born[:, settled].sum(axis=1)
    )


def _suspects(
    sites: Sites, start_ns: int, now_ns: int, taken_back: npt.NDArray[np.int64]
) -> tuple[tuple[Suspect, ...], int]:
    """All that leaks, by rate, then all that grows."""
    rows = np.flatnonzero((sites.code == _LEAKING) | (sites.code == _GROWING))
    weight = sites.rate_bytes_per_min[rows] * np.maximum(sites.confidence[rows], 0.05)
    order = rows[np.lexsort((rows, -weight, sites.code[rows] != _LEAKING))]
    suspects = []
    for row in order[:_MOST_SUSPECTS].tolist():
        judgement = judgement_of(sites, row, start_ns, now_ns, int(taken_back[row]))
        member = Member(row, judgement.rate_bytes_per_min, 1.0)
        suspects.append(Suspect(judgement, (member,), None))
    return tuple(suspects), max(0, len(order) - _MOST_SUSPECTS)
