"""Leaks that are split over several stacks, found from look to look."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np

from tracelloc.heap.cohorts import I64, Census
from tracelloc.heap.stacks import Stacks
from tracelloc.verdict.grouping import (
    Groups,
    Key,
    Prefixes,
    choose,
    group_by_prefix,
    shared_frame,
    worth_judging,
)
from tracelloc.verdict.memory import Memory
from tracelloc.verdict.sites import PART, Circumstances, Sites, judge_in_parts
from tracelloc.verdict.suspects import Group


class SplitLeaks:
    """Knows the stacks' frames, and what was said of their sums before."""

    def __init__(self, is_wrapper: Callable[[int], bool]) -> None:
        """``is_wrapper``: whether a return address lies where allocations only pass."""
        self._prefixes = Prefixes(is_wrapper)
        self._memory = Memory()
        self._number_of: dict[Key, int] = {}

    def find(
        self,
        census: Census,
        sites: Sites,
        circumstances: Circumstances,
        stacks: Stacks,
        now_ns: int,
    ) -> Generator[None, None, list[Group]]:
        """Those that are leaking or growing, in parts. ``sites``: all single stacks."""
        while self._prefixes.extend(stacks, PART):
            yield None
        rows = np.flatnonzero(census.born.any(axis=0))
        if not len(rows):
            return []
        groups = group_by_prefix(self._prefixes.numbers(census.stacks), rows)
        groups = worth_judging(groups, census)
        yield None
        if not len(groups):
            return []
        sums = yield from census.sums(groups.order, groups.starts, groups.ends)
        floor = groups.largest(circumstances.loss_floor)
        judged = yield from judge_in_parts(
            len(groups), sums.select, replace(circumstances, loss_floor=floor)
        )
        numbers = self._numbers(groups)
        judged = self._memory.settle(judged, numbers, now_ns)
        yield None
        found = []
        for at in choose(groups, judged, sites):
            members = np.sort(groups.members(at))
            found.append(
                Group.of(
                    census,
                    members,
                    judged.select(np.array([at])),
                    frame=shared_frame(stacks, members.tolist()),
                    taken_back=int(self._memory.taken_back[numbers[at]]),
                )
            )
            yield None
        return found

    def _numbers(self, groups: Groups) -> I64:
        """Who they are, from look to look."""
        known = self._number_of
        numbers = np.array([known.setdefault(key, len(known)) for key in groups.keys])
        self._memory.grow(len(known))
        return numbers
