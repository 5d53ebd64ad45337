"""Judges all stacks every few seconds, and remembers what it said before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracelloc.stacks import Stacks
from tracelloc.totals import Totals
from tracelloc.units import NS_PER_S
from tracelloc.verdict.cohorts import F64, I64, Cohorts, Population
from tracelloc.verdict.findings import Findings, Moment
from tracelloc.verdict.grouping import Key, Prefixes, add_up, choose, shared_frame
from tracelloc.verdict.judgement import Verdict
from tracelloc.verdict.loss import Gaps, common_share
from tracelloc.verdict.rule import Curve
from tracelloc.verdict.sites import CODE_OF, Circumstances, Sites, judge_sites
from tracelloc.verdict.suspects import Group, list_suspects

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


class _Memory:
    """What was said before of some sites, by number."""

    def __init__(self) -> None:
        # Since when it looks like a leak (0: it does not), whether it was called leaking
        # last, and how often that was taken back.
        self._looks_since_ns = np.zeros(64, np.int64)
        self._called = np.zeros(64, np.bool_)
        self.taken_back = np.zeros(64, np.int64)

    def grow(self, count: int) -> None:
        more = max(count, 2 * len(self._called)) - len(self._called)
        if count <= len(self._called):
            return
        for name in ("_looks_since_ns", "_called", "taken_back"):
            column = getattr(self, name)
            setattr(self, name, np.append(column, np.zeros(more, column.dtype)))

    def settle(self, sites: Sites, numbers: I64, now_ns: int) -> Sites:
        """What looks like a leak for the first time is only growing."""
        looks = sites.code == _LEAKING
        since = self._looks_since_ns[numbers]
        since[~looks] = 0
        since[looks & (since == 0)] = now_ns
        called = looks & (now_ns - since >= _HOLD_NS)
        self.taken_back[numbers] += self._called[numbers] & ~called
        self._looks_since_ns[numbers], self._called[numbers] = since, called
        return replace(sites, code=np.where(looks & ~called, _GROWING, sites.code))


class Judge:
    """One per table. Not thread safe."""

    def __init__(self, is_wrapper: Callable[[int], bool] = lambda _: False) -> None:
        """``is_wrapper``: whether a return address lies where allocations only pass."""
        self._gaps = Gaps()
        self._due_ns = 0
        self._stacks = _Memory()
        self._sums = _Memory()
        self._number_of_sum: dict[Key, int] = {}
        self._prefixes = Prefixes(is_wrapper)

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
        self._stacks.grow(count)
        sites = judge_sites(population, circumstances)
        sites = self._stacks.settle(sites, np.arange(count), now_ns)
        groups = self._groups(population, stacks, circumstances, sites, now_ns)
        moment = Moment(cohorts.start_ns, now_ns)
        suspects = list_suspects(sites, groups, self._stacks.taken_back, moment)
        return Findings(
            moment=moment,
            suspects=suspects[:_MOST_SUSPECTS],
            suspect_of={m.stack: s for s in suspects[:_MOST_SUSPECTS] for m in s.members},
            suspects_left_out=max(0, len(suspects) - _MOST_SUSPECTS),
            sites=sites,
            taken_back=self._stacks.taken_back[:count].copy(),
        )

    def _groups(
        self,
        population: Population,
        stacks: Stacks,
        circumstances: Circumstances,
        sites: Sites,
        now_ns: int,
    ) -> list[Group]:
        """The sums over shared frames that are suspects."""
        sums = add_up(population, self._prefixes.numbers(stacks), circumstances)
        if sums is None:
            return []
        known = self._number_of_sum
        numbers = np.array([known.setdefault(key, len(known)) for key in sums.keys])
        self._sums.grow(len(known))
        sums = replace(sums, sites=self._sums.settle(sums.sites, numbers, now_ns))
        kept = Curve(population.edges_s, population.alive_bytes)
        groups = []
        for at in choose(sums, sites):
            members = sums.members[at]
            span = np.tile([sums.sites.since_s[at], population.now_s], (len(population.born), 1))
            groups.append(
                Group(
                    sites=sums.sites.select(np.array([at])),
                    stacks=members,
                    bytes_kept=kept.between(span)[members, 0],
                    frame=shared_frame(stacks, members.tolist()),
                    taken_back=int(self._sums.taken_back[numbers[at]]),
                )
            )
        return groups


def _loss_floor(population: Population, losses: bool) -> F64:
    if not losses:
        return np.zeros(len(population.born))
    settled = population.edges_s[1:] <= population.now_s - _SETTLED_S
    return common_share(
        population.alive[:, settled].sum(axis=1), population.born[:, settled].sum(axis=1)
    )
