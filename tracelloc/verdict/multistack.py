"""Leaks of several stacks: one leak split over them, or one lost object made of several blocks.

Parts of one object leak together: their onsets agree, they have a common caller, and in every
slice of time they leave survivors in the same proportion, such as 1:1 or 2:1. The proportion is
much more exact than that of two leaks that only follow the same load (Pearson's chi-squared over
the slices is far below its expectation).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.heap.cohorts import Census
from tracelloc.model.figures import F64, I64, Mask, Rows
from tracelloc.model.stacks import CallStacks, Frames
from tracelloc.model.verdicts import CODE_OF, Sites, Verdict
from tracelloc.verdict import grouping
from tracelloc.verdict.findings import Group, VerdictHistory
from tracelloc.verdict.judging import judge_in_parts
from tracelloc.verdict.loss import Circumstances
from tracelloc.verdict.parameters import P


def find_tied(
    census: Census, sites: Sites, stacks: CallStacks, free: Rows
) -> Generator[None, None, list[Rows]]:
    """Finds lists of two or more stacks that leak together. ``free``: stacks in no group yet."""
    leaking = free[sites.code[free] == CODE_OF[Verdict.LEAKING]]
    order = leaking[np.argsort(-sites.rate_bytes_per_min[leaking], kind="stable")][
        : P.tied_most_stacks
    ]
    rows = [
        _Row(census.alive[:, row], float(sites.since_s[row]), stacks.frames(row) or ())
        for row in order.tolist()
    ]
    tied: list[list[int]] = []
    for at, row in enumerate(rows):
        for others in tied:
            if _belong_together(census, rows[others[0]], row):
                others.append(at)
                break
        else:
            tied.append([at])
        if at % P.tied_at_a_time == 0:
            yield None
    return [np.sort(order[others]) for others in tied if len(others) > 1]


@dataclass(frozen=True, slots=True)
class _Row:
    """A leaking stack, to be compared with others that may leak together with it."""

    alive: I64  # Live blocks per slice of time
    since_s: float
    frames: Frames


def _belong_together(census: Census, one: _Row, two: _Row) -> bool:
    since_s = census.now_s - min(one.since_s, two.since_s)
    if abs(one.since_s - two.since_s) > max(P.tied_onset_s, P.tied_onset_part * since_s):
        return False
    frames = one.frames, two.frames
    shared = shared_callers(frames)
    if not shared or max(map(len, frames)) - shared > P.tied_own_frames:
        return False
    edges = census.edges_s
    whole = edges[:-1] >= max(one.since_s, two.since_s)
    whole &= edges[1:] <= census.now_s - P.tied_settled_s
    return in_proportion(one.alive[whole], two.alive[whole])


def shared_callers(stacks: tuple[Frames, ...]) -> int:
    """Returns how many outermost frames all stacks share."""
    return grouping.common_length([frames[::-1] for frames in stacks])


def shared_caller(stacks: CallStacks, members: list[int]) -> int | None:
    """Returns the innermost return address that all these stacks share as a caller."""
    all_frames = tuple(stacks.frames(index) or () for index in members)
    shared = shared_callers(all_frames)
    return all_frames[0][-shared] if shared else None


def in_proportion(one: F64 | I64, two: F64 | I64) -> bool:
    """Whether one row of counts is a multiple of the other, more exactly than by chance."""
    both = one + two
    counted = both > 0
    if np.count_nonzero(counted) < P.tied_least_slices or not one.any() or not two.any():
        return False
    ratio = max(one.sum(), two.sum()) / min(one.sum(), two.sum())
    if abs(ratio - round(ratio)) > P.tied_ratio * ratio:
        return False
    one, both = one[counted], both[counted]
    share = one.sum() / both.sum()
    chi_squared = ((one - share * both) ** 2 / (share * (1 - share) * both)).sum()
    return bool(chi_squared < P.tied_chi_squared * (len(both) - 1))


@dataclass(frozen=True, slots=True)
class JudgedStacks:
    """The judgements of all single stacks at one time, and their basis."""

    census: Census
    sites: Sites
    is_cut: Mask  # Stacks that belong to no group, as they may stand for many call sites
    circumstances: Circumstances
    stacks: CallStacks
    now_ns: int  # CLOCK_MONOTONIC


class SplitLeaks:
    """Finds split leaks; remembers the stacks' frames and earlier verdicts on their sums."""

    def __init__(self, is_wrapper: Callable[[int], bool]) -> None:
        self._prefixes = grouping.Prefixes(is_wrapper)
        self._callers = grouping.SharedCallers()
        self._kinds = tuple((_Sums(), _Sums()) for _ in range(2))
        """Sums by innermost and by outermost frames: of stacks with unreachable blocks, and of
        the others, so that sums of both kinds do not hide either."""

    def find(self, look: JudgedStacks) -> Generator[None, None, list[Group]]:
        """Finds groups of stacks that leak or grow; yields between parts of the work."""
        unreachable = look.sites.unreachable > 0
        found = []
        for (functions, nodes), stacks in zip(
            self._kinds, (unreachable, ~unreachable), strict=True
        ):
            one = replace(look, is_cut=look.is_cut | ~stacks)
            if not one.is_cut.all():
                by_function = yield from self._by_innermost_frames(one, functions)
                by_caller = yield from self._by_outermost_frames(one, nodes)
                found += most_specific(
                    by_function, by_caller, grouping.may_leak(look.census, look.sites)
                )
        return found

    def _by_innermost_frames(
        self, look: JudgedStacks, functions: _Sums
    ) -> Generator[None, None, list[Group]]:
        while self._prefixes.extend(look.stacks, P.sites_at_a_time):
            yield None
        rows = np.flatnonzero(look.census.born.any(axis=0) & ~look.is_cut)
        if not len(rows):
            return []
        groups = grouping.group_by_prefix(self._prefixes.numbers(look.census.stacks), rows)
        groups = groups.select(grouping.worth_judging(groups, look.census))
        alike = grouping.suspects_in(groups, look.sites)[1]
        yield None
        return (yield from functions.find(groups, alike, groups.sizes, look, grouping.shared_frame))

    def _by_outermost_frames(
        self, look: JudgedStacks, nodes: _Sums
    ) -> Generator[None, None, list[Group]]:
        while self._callers.extend(look.stacks, look.census.stacks, P.sites_at_a_time):
            yield None
        if look.census.now_s < P.first_verdict_s:
            return []
        parts = grouping.may_leak(look.census, look.sites) & ~look.is_cut
        yield None
        all_nodes = self._callers.groups(np.any(look.census.born, axis=0) & ~look.is_cut)
        yield None
        groups, alike, below = grouping.parts_of_nodes(all_nodes, parts, look.sites)
        at = grouping.worth_judging(groups, look.census)
        yield None
        return (yield from nodes.find(groups.select(at), alike[at], below[at], look, shared_caller))


class _Sums:
    """Judges sums over groups of stacks, using earlier verdicts on the same groups."""

    def __init__(self) -> None:
        self._memory = VerdictHistory()
        self._number_of: dict[grouping.Key, int] = {}
        self._leaking: set[grouping.Key] = set()
        """Groups that were reported as leaking."""

    def find(
        self,
        groups: grouping.Groups,
        alike: Mask,
        sizes: Rows,
        look: JudgedStacks,
        frame_of: Callable[[CallStacks, list[int]], int | None],
    ) -> Generator[None, None, list[Group]]:
        """Finds suspects among groups; ``sizes``: of stacks that share each one's frames."""
        if not len(groups):
            return []
        judged, retracted = yield from self._judge(groups, look)
        # One leak stays one, even when its parts are recognized as leaks, too.
        alike |= np.array([key in self._leaking for key in groups.keys])
        found = []
        chosen = grouping.choose(groups, judged, look.sites, alike)
        for at in chosen:
            members = np.sort(groups.members(at))
            frame = frame_of(look.stacks, members.tolist())
            one = judged.select(np.array([at]))
            group = Group.from_stacks(
                look.census, members, one, frame, int(retracted[at]), look.circumstances
            )
            found.append(replace(group, sharing=int(sizes[at])))
            yield None
        leaking = judged.code == CODE_OF[Verdict.LEAKING]
        self._leaking = {groups.keys[at] for at in chosen if leaking[at]}
        return found

    def _judge(
        self, groups: grouping.Groups, look: JudgedStacks
    ) -> Generator[None, None, tuple[Sites, I64]]:
        sums = yield from look.census.totals_of_groups(groups.order, groups.starts, groups.ends)
        floor = groups.largest(look.circumstances.loss_floor)
        known = self._number_of
        numbers = np.array([known.setdefault(key, len(known)) for key in groups.keys])
        self._memory.grow(len(known))
        circumstances = replace(
            look.circumstances, loss_floor=floor, onset_s=self._memory.onsets(numbers),
            keeps=groups.largest(look.circumstances.keeps) > 0,
        )  # fmt: skip
        judged = yield from judge_in_parts(len(groups), sums.select, circumstances)
        judged = self._memory.settle(judged, numbers, look.now_ns)
        yield None
        return judged, self._memory.retracted[numbers]


def most_specific(functions: list[Group], nodes: list[Group], parts: Mask) -> list[Group]:
    """Chooses between groups by innermost and by outermost frames.

    If two groups have stacks in common, the function is kept, unless it explains too little of the
    node, or more stacks share it than share the node. In the latter case, the node must explain
    (nearly) all of it, unless most of the function's stacks have no part in any leak. A growing
    group never replaces a leaking one. ``parts``: the stacks that may have a part in a leak.
    """
    kept = list(functions)
    for node in nodes:
        same = [each for each in kept if np.isin(each.stacks, node.stacks).any()]
        if not node.is_leaking and any(each.is_leaking for each in same):
            continue
        rate = sum(each.rate_bytes_per_min for each in same)
        smaller = all(node.sharing < each.sharing for each in same)
        explains = node.rate_bytes_per_min >= P.sum_explained * rate or all(
            np.count_nonzero(parts[each.stacks]) < len(each.stacks) / 2 for each in same
        )
        if rate < P.sum_explained * node.rate_bytes_per_min or (smaller and explains):
            kept = [each for each in kept if not any(each is other for other in same)]
            kept.append(node)
    return kept
