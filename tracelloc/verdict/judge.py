"""Judges all stacks every few seconds, and remembers earlier verdicts."""

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.heap.cohorts import Census, Cohorts
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.figures import F64, Mask, Rows, Totals
from tracelloc.model.stacks import CallStacks, StackFlag
from tracelloc.model.verdicts import Findings, JudgingBasis, Sites, Verdict
from tracelloc.text import NS_PER_S
from tracelloc.verdict.findings import Group, VerdictHistory, are_suspects, list_suspects
from tracelloc.verdict.judging import judge_in_parts, judge_sites
from tracelloc.verdict.loss import Circumstances, Gaps, common_share
from tracelloc.verdict.multistack import JudgedStacks, SplitLeaks, find_tied, shared_caller
from tracelloc.verdict.parameters import P

_NO_SUSPECTS: Final = Verdict.CACHE, Verdict.BUSY, Verdict.START_UP, Verdict.DECIDING


@dataclass(frozen=True, slots=True)
class KnownLosses:
    """Events of a process that are known to be lost, counted since tracing began."""

    events: int  # Lost allocations, frees and restores
    frees: int  # Lost frees among the events
    address_reuses: int  # Addresses that were allocated again without a free being seen

    @property
    def proven(self) -> bool:
        return self.events > 0 or self.address_reuses > 0


NO_LOSSES: Final = KnownLosses(0, 0, 0)


class Judge:
    """Judges the stacks of one live table, and remembers earlier verdicts. Not thread safe."""

    def __init__(
        self, is_wrapper: Callable[[int], bool] = lambda _: False, first_ns: int = 0
    ) -> None:
        """``is_wrapper``: whether a return address lies in code that only forwards allocations.
        ``first_ns``: when the first judgement is due, CLOCK_MONOTONIC.
        """
        self._gaps = Gaps()
        self._due_ns = first_ns
        self._least_bytes: int | None = None  # Least resident memory so far
        self._stacks = VerdictHistory()
        self._split_leaks = SplitLeaks(is_wrapper)

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def judge_stacks(
        self,
        cohorts: Cohorts,
        totals: Totals,
        stacks: CallStacks,
        now_ns: int,
        losses: KnownLosses = NO_LOSSES,
        *,
        unreachable: UnreachableBlocks | None = None,
        resident_bytes: int = 0,
        collection: tuple[bool, bool] = (False, False),
    ) -> Iterator[Findings | None]:
        """Judges all stacks, a part at a time, so that events need not wait.

        ``unreachable``: blocks without pointers to them; None if unknown. ``resident_bytes``: of
        the process. ``collection``: whether a garbage collector frees the process's blocks, and
        whether that moves objects.

        All parts refer to the time of the first one. The last part yields the findings; None
        while nothing has happened.
        """
        self._due_ns = now_ns + P.judge_every_ns
        if cohorts.start_ns is None:
            yield None
            return
        is_sampled = totals.sample_bytes is not None
        moment = JudgingBasis(cohorts.start_ns, now_ns, is_sampled, *_unread(unreachable))
        if unreachable is not None:
            unreachable.collects, unreachable.moves = collection
        cohorts.grow(count := len(stacks))
        cohorts.advance(now_ns, totals)
        census = cohorts.census(now_ns, count, unreachable)
        yield None
        self._stacks.grow(count)
        known = self._circumstances(census, moment, losses, unreachable)
        self._least_bytes = min(self._least_bytes or resident_bytes, resident_bytes)
        known = replace(known, resident_bytes=resident_bytes, collects=collection[0])
        circumstances = replace(known, risen_bytes=resident_bytes - self._least_bytes)
        sites = yield from judge_in_parts(count, census.survivors_by_age, circumstances)
        sites, is_no_site = _withheld(sites, stacks, is_sure=not circumstances.in_kernel)
        sites = self._stacks.settle(sites, np.arange(count), now_ns)
        one_look = JudgedStacks(census, sites, is_no_site, circumstances, stacks, now_ns)
        groups = yield from self._split_leaks.find(one_look)
        if unreachable is not None:
            groups = self._by_objects(groups, unreachable.last.objects, one_look)
        groups += yield from self._tied_leaks(groups, one_look)
        yield None
        suspects, left_out = list_suspects(
            sites, groups, self._stacks.retracted, moment, P.most_suspects
        )
        if not (circumstances.collects or circumstances.in_kernel):
            sites = _with_lost(sites, ~is_no_site)
        yield Findings(
            moment=moment,
            suspects=suspects,
            suspect_of={m.stack: s for s in suspects for m in s.members},
            suspects_left_out=left_out,
            sites=sites,
            retracted=self._stacks.retracted[:count].copy(),
        )

    def _circumstances(
        self,
        census: Census,
        moment: JudgingBasis,
        losses: KnownLosses,
        unreachable: UnreachableBlocks | None,
    ) -> Circumstances:
        self._gaps.record_losses(losses.events, moment.now_ns)
        freed = int(census.born.sum() - census.alive.sum())  # If sampled: of samples only
        clean_ns = self._gaps.clean_from_ns() or moment.start_ns
        kept = () if unreachable is None else unreachable.kept_stacks
        return Circumstances(
            loss_share=losses.frees / max(freed, 1) if self._gaps.are_lasting else 0.0,
            loss_floor=_loss_floor(census, losses.proven),
            clean_from_s=(clean_ns - moment.start_ns) / NS_PER_S,
            onset_s=self._stacks.onsets(np.arange(census.stacks)),
            keeps=np.isin(np.arange(census.stacks), list(kept)),
            sampled=moment.sampled,
            searched=unreachable is not None,
            refused=unreachable is not None and unreachable.is_refused,
            in_kernel=bool(moment.kernel_queue),
        )

    def _by_objects(
        self, groups: list[Group], objects: Mapping[int, int], look: JudgedStacks
    ) -> list[Group]:
        """Joins groups and growing stacks that allocate the parts of one object."""
        rows = look.sites.growing()
        rows = rows[np.isin(rows, list(objects)) & (look.sites.confidence[rows] > 0)]
        rows = _without(rows, groups)
        units = [(group.stacks, group.sites) for group in groups]
        units += [(row, look.sites.select(row)) for row in rows[:, None]]
        parts: dict[int, list[tuple[Rows, Sites]]] = {}
        for unit in units:
            of = {objects[stack] for stack in unit[0].tolist() if stack in objects}
            if len(of) == 1:
                parts.setdefault(of.pop(), []).append(unit)
        found, joined = list[Group](), np.empty(0, np.intp)
        for each in parts.values():
            stacks = np.sort(np.concatenate([stacks for stacks, _ in each]))
            judged = Sites.concatenate([sites for _, sites in each])
            together = self._joined(stacks, judged, look) if len(each) > 1 else None
            if together is not None and are_suspects(together.sites)[0]:
                found.append(together)
                joined = np.append(joined, stacks)
        return found + [group for group in groups if not np.isin(group.stacks, joined).any()]

    def _tied_leaks(
        self, groups: list[Group], look: JudgedStacks
    ) -> Generator[None, None, list[Group]]:
        free = _without(np.arange(len(look.sites)), groups)
        tied = yield from find_tied(look.census, look.sites, look.stacks, free)
        found = (self._joined(rows, look.sites.select(rows), look) for rows in tied)
        return [group for group in found if group is not None]

    def _joined(self, rows: Rows, parts: Sites, look: JudgedStacks) -> Group | None:
        """Returns a group of stacks (``rows``), judged as one site; None if that doesn't grow.

        ``parts``: the stacks and smaller groups; if one of these leaks, the group does.
        """
        census, around = look.census, look.circumstances
        floor = around.loss_floor[rows].max(keepdims=True)
        one = census.survivors_by_age(rows).sums(np.arange(len(rows)), np.zeros(1, np.intp))
        onset_s = around.onset_s[rows].min(keepdims=True)
        keeps = around.keeps[rows].max(keepdims=True)
        around = replace(around, loss_floor=floor, onset_s=onset_s, keeps=keeps)
        together = judge_sites(one, around)
        if not together.confidence[0] > 0:
            return None
        confidence = np.maximum(together.confidence, parts.confidence.max())
        together = replace(together, code=parts.code.min(keepdims=True), confidence=confidence)
        frame = shared_caller(look.stacks, rows.tolist())
        retracted = int(self._stacks.retracted[rows].max())
        return Group.from_stacks(census, rows, together, frame, retracted, look.circumstances)


def _without(rows: Rows, groups: list[Group]) -> Rows:
    """Returns the stacks (``rows``) that are in no group."""
    return np.setdiff1d(rows, np.concatenate([np.empty(0, np.intp), *(g.stacks for g in groups)]))


def _unread(unreachable: UnreachableBlocks | None) -> tuple[int, str]:
    """Returns what searches can't read: swapped bytes, and the queue of requests in the kernel."""
    if unreachable is None:
        return 0, ""
    return unreachable.last.swapped_bytes, unreachable.last.kernel_queue


def _withheld(sites: Sites, stacks: CallStacks, *, is_sure: bool) -> tuple[Sites, Mask]:
    """Withholds verdicts on stacks that are no call sites. Also returns a mask of these stacks.

    ``is_sure``: whether blocks that nothing points to are surely lost.
    """
    count = len(sites)
    # Stacks of which only the id is known may also stand for many call sites.
    is_cut = stacks.are_cut[:count] | stacks.are_unknown[:count]
    sites = sites.withheld(is_cut)
    is_earlier = stacks.have(StackFlag.EARLIER)[:count]
    sites = sites.withheld(is_earlier, Verdict.EARLIER)
    if is_sure:
        sites = sites.withheld(is_earlier & _lose_much(sites), Verdict.LOST)
    return sites, is_cut | is_earlier


def _with_lost(sites: Sites, rows: Mask) -> Sites:
    """Replaces reassuring verdicts on some sites by *lost*: nothing points to some blocks."""
    return sites.withheld(rows & sites.have(_NO_SUSPECTS) & _lose_much(sites), Verdict.LOST)


def _lose_much(sites: Sites) -> Mask:
    """Returns a mask of sites that lose a part of their blocks, not just a few by chance."""
    return sites.unreachable >= np.maximum(P.lost_least, P.lost_share * sites.alive)


def _loss_floor(census: Census, losses: bool) -> F64:
    if not losses:
        return np.zeros(census.stacks)
    settled = census.edges_s[1:] <= census.now_s - P.loss_settled_s
    return common_share(
        census.alive[settled].sum(axis=0).astype(np.float64),
        census.born[settled].sum(axis=0).astype(np.float64),
    )
