"""Leaks that are split over many functions below one: sums over the frames stacks begin with.

A request handler may leak through forty parsers, a little through each. Stacks are ordered
by their frames from the outermost one inwards; each place where they part from each other is
a node of the call tree, and its stacks are side by side. What the nodes leak is added up and
judged like a stack; the rules of ``grouping`` say which nodes are reported.

A node near the root has nearly everything below it. So that what is innocent neither hides
a leak nor seems to be part of one, only such stacks count as have kept a block for much
longer than nearly all their blocks live, and are not known to be something else.
"""

from __future__ import annotations

import bisect
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import F64, Census
from tracelloc.heap.stacks import Frames, Stacks
from tracelloc.verdict.grouping import Groups, common_length, suspects_in
from tracelloc.verdict.judgement import CODE_OF, Sites, Verdict
from tracelloc.verdict.rule import Rows
from tracelloc.verdict.survival import Mask

_KEPT_S: Final = 30.0
_LIVES: Final = 4.0
"""A block that is older than this, and than so many times the age that nearly all blocks of
its stack die by, may be leaked."""
_INNOCENT: Final = (CODE_OF[Verdict.CACHE_OR_POOL], CODE_OF[Verdict.START_UP])
_ENOUGH_TO_JUDGE: Final = 12
"""Blocks alive, for such a verdict on a stack to be relied upon."""
_FEWEST_STACKS: Final = 4
_MANY: Final = 8
"""So many suspects below one function are rather one leak than so many."""


class Callers:
    """All stacks in the order of their frames, the outermost first."""

    def __init__(self) -> None:
        self._count = 0
        self._paths: list[Frames] = []
        self._stacks: list[int] = []
        self._shared: list[int] = []
        """Outermost frames that each shares with the one before it."""

    def extend(self, stacks: Stacks, count: int, most: int) -> bool:
        """Takes in some more of the first ``count`` stacks. Whether there were any."""
        fresh = range(self._count, min(count, self._count + most))
        for index in fresh:
            self._insert(index, (stacks.frames(index) or ())[::-1])
        self._count += len(fresh)
        return len(fresh) > 0

    def _insert(self, index: int, path: Frames) -> None:
        at = bisect.bisect_right(self._paths, path)
        self._paths.insert(at, path)
        self._stacks.insert(at, index)
        self._shared.insert(at, self._shared_with_previous(at))
        if at + 1 < len(self._paths):
            self._shared[at + 1] = self._shared_with_previous(at + 1)

    def _shared_with_previous(self, at: int) -> int:
        return 0 if at == 0 else common_length(self._paths[at - 1 : at + 1])

    def groups(self, wanted: Mask) -> Groups:
        """The nodes with ``_FEWEST_STACKS`` of the wanted stacks, inner ones first."""
        chosen = np.flatnonzero(wanted[self._stacks])
        if not len(chosen):
            nothing = np.empty(0, np.intp)
            return Groups(nothing, nothing, nothing, [])
        # Of two that are not neighbours, the least that any two between them share.
        shared = np.minimum.reduceat(np.array(self._shared), np.append(0, chosen[:-1] + 1))
        nodes = [n for n in nodes_of(shared.tolist()) if n[1] - n[0] >= _FEWEST_STACKS]
        keys = [self._paths[chosen[start]][:depth] for start, _, depth in nodes]
        bounds = np.array(nodes, np.intp).reshape(-1, 3)
        return Groups(np.array(self._stacks)[chosen], bounds[:, 0], bounds[:, 1], keys)


def nodes_of(shared: list[int]) -> list[tuple[int, int, int]]:
    """(start, end, depth) of each stretch whose members share so many first frames, and no
    longer stretch does; inner ones first. ``shared``: of each member with the one before it.
    """
    nodes = []
    # Those that are not closed yet: start and depth, ever deeper.
    open_nodes: list[tuple[int, int]] = []
    for at, depth in enumerate([*shared[1:], 0], start=1):
        start = at - 1
        while open_nodes and open_nodes[-1][1] > depth:
            start, inner = open_nodes.pop()
            nodes.append((start, at, inner))
        if depth and (not open_nodes or open_nodes[-1][1] < depth):
            open_nodes.append((start, depth))
    return nodes


def may_leak(census: Census, sites: Sites) -> Mask:
    """Stacks that may have a part in a leak, however small."""
    age_s = np.maximum(_KEPT_S, _LIVES * sites.most_live_s)
    begin, end = census.edges_s[:-1, None], census.edges_s[1:, None]
    older = np.clip((census.now_s - age_s - begin) / (end - begin), 0, 1)
    kept: F64 = (census.alive * older).sum(axis=0)
    known = np.isin(sites.code, _INNOCENT) & (sites.alive >= _ENOUGH_TO_JUDGE)
    return (kept >= 0.5) & ~known


def parts_of_nodes(nodes: Groups, parts: Mask, sites: Sites) -> tuple[Groups, Mask, Rows]:
    """What may leak of each node, and two figures for each of these groups.

    They are whether it is one leak even if its stacks are suspects by themselves, and how
    many stacks are below the node in all. Where only one inner node has such stacks, it
    stands for the outer one.
    """
    count, alike = suspects_in(nodes, sites)
    narrow = nodes.only(parts)
    enough = np.flatnonzero(narrow.sizes >= _FEWEST_STACKS)
    span = narrow.starts[enough] * (len(narrow.order) + 1) + narrow.ends[enough]
    kept = enough[np.sort(np.unique(span, return_index=True)[1])]
    one: Mask = alike & (count >= _MANY)
    return narrow.select(kept), one[kept], nodes.sizes[kept]
