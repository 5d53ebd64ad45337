"""Finds leaks that are split over many call stacks, by sums over shared frames.

A leaking function with two hundred callers leaks through two hundred stacks, each of them too
little to notice. Stacks are therefore also added up by their innermost frames, at several depths;
frames of the C library and the C++ runtime are skipped. The sums are judged like stacks, and
reported by these rules:

* if one deeper sum has most of what a sum leaks, the deeper one is considered instead;
* if a sum's stacks are judged alike (nearly all of them suspects), they are one suspect;
* if deeper sums and stacks that are suspects explain most of it, they are reported;
* otherwise it is a leak split over its stacks: one suspect.

A request handler may leak through forty parsers, a little through each. Stacks are therefore
also ordered by their frames from the outermost one inwards. Each place where stacks diverge is a
node of the call tree, and its stacks are adjacent. A node near the root has nearly everything
below it. Innocent stacks must neither hide a leak nor seem to be part of one. So only stacks
count that have kept a block for much longer than nearly all their blocks live, and that are not
known to be something else.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from itertools import compress, count
from operator import ne
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.heap.cohorts import Census
from tracelloc.model.figures import F64, I64, Mask, Rows
from tracelloc.model.stacks import CallStacks, Frames
from tracelloc.model.verdicts import CODE_OF, Sites, Verdict
from tracelloc.verdict.findings import are_suspects
from tracelloc.verdict.parameters import P

_LEAKING: Final = CODE_OF[Verdict.LEAKING]

Key = tuple[int, ...]  # Depth and number of a prefix, or outermost frames: identifies a sum


class Prefixes:
    """Numbers of the innermost frames of each stack, per depth: equal frames, equal number."""

    def __init__(self, is_wrapper: Callable[[int], bool]) -> None:
        self._is_wrapper = is_wrapper
        self._known: list[dict[Frames, int]] = [{} for _ in P.prefix_depths]
        self._numbers = np.empty((0, len(P.prefix_depths)), np.int64)

    def extend(self, stacks: CallStacks, most: int) -> bool:
        """Numbers up to ``most`` more stacks. Returns whether there were any."""
        known = len(self._numbers)
        fresh = range(known, min(len(stacks), known + most))
        if fresh:
            rows = [self._of(stacks.frames(index)) for index in fresh]
            self._numbers = np.concatenate([self._numbers, np.array(rows, np.int64)])
        return len(fresh) > 0

    def numbers(self, count: int) -> I64:
        """Returns prefix numbers: a row per stack, a column per depth; -1 beyond its last frame."""
        return self._numbers[:count]

    def _of(self, frames: Frames | None) -> list[int]:
        frames = frames or ()
        skipped = self.count_wrappers(frames)
        row = []
        for depth, known in zip(P.prefix_depths, self._known, strict=True):
            prefix = frames[: skipped + depth]
            enough = len(prefix) == skipped + depth
            row.append(known.setdefault(prefix, len(known)) if enough else -1)
        return row

    def count_wrappers(self, frames: Frames) -> int:
        """Returns how many innermost frames of a stack only forward allocations."""
        count = 0
        while count < len(frames) - 1 and self._is_wrapper(frames[count]):
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of stacks: stretches of one order, so any two are disjoint or nested."""

    order: Rows  # Indices of stacks; those of one group are adjacent
    starts: Rows  # Where each group begins in `order`
    ends: Rows  # Where each group ends in `order`
    keys: list[Key]

    def __len__(self) -> int:
        return len(self.keys)

    def members(self, group: int) -> Rows:
        return self.order[self.starts[group] : self.ends[group]]

    def select(self, groups: Rows) -> Groups:
        keys = [self.keys[group] for group in groups.tolist()]
        return Groups(self.order, self.starts[groups], self.ends[groups], keys)

    @property
    def sizes(self) -> Rows:
        return self.ends - self.starts

    def only(self, stacks: Mask) -> Groups:
        """Returns the groups with only the stacks in a mask; groups may become empty or equal."""
        chosen = stacks[self.order]
        before = np.append(0, np.cumsum(chosen))
        return Groups(self.order[chosen], before[self.starts], before[self.ends], self.keys)

    def total(self, of_stacks: F64) -> F64:
        until = np.concatenate([np.zeros(1), np.cumsum(of_stacks[self.order])])
        summed: F64 = until[self.ends] - until[self.starts]
        return summed

    def largest(self, of_stacks: F64 | Mask) -> F64:
        """Returns the largest figure of each group's stacks; 0 if there are no groups."""
        padded = np.append(of_stacks[self.order], 0.0)  # One more keeps each end in bounds
        bounds = np.stack([self.starts, self.ends], axis=1).ravel()
        return np.maximum.reduceat(padded, bounds)[::2]


def group_by_prefix(numbers: I64, rows: Rows) -> Groups:
    """Groups stacks (``rows``) by equal prefix ``numbers``, a row per stack; two or more each."""
    # Longer prefixes refine shorter ones, so each number is one stretch of this order.
    order = rows[np.lexsort(numbers[rows, ::-1].T)]
    starts, ends, levels = [], [], []
    # The deepest first: of equal groups, the most specific one is kept.
    for depth in reversed(range(len(P.prefix_depths))):
        column = numbers[order, depth]
        cuts = np.flatnonzero(column[1:] != column[:-1]) + 1
        start, end = np.append(0, cuts), np.append(cuts, len(order))
        several = (end - start > 1) & (column[start] >= 0)
        starts.append(start[several])
        ends.append(end[several])
        levels.append(np.full(np.count_nonzero(several), depth))
    start, end, level = map(np.concatenate, (starts, ends, levels))
    first = np.sort(np.unique(start * (len(order) + 1) + end, return_index=True)[1])
    start, end, level = start[first], end[first], level[first]
    keys = zip(level.tolist(), numbers[order[start], level].tolist(), strict=True)
    return Groups(order, start, end, list(keys))


def worth_judging(groups: Groups, census: Census) -> Rows:
    """Returns the rows of groups with new blocks; if there are too many, those with the most."""
    newer = census.edges_s[:-1] >= census.now_s / 2
    new_blocks = groups.total(census.alive[newer].sum(axis=0).astype(np.float64))
    kept = np.flatnonzero(new_blocks >= P.sum_least_new)
    if len(kept) > P.most_sums:
        kept = kept[np.argsort(-new_blocks[kept], kind="stable")[: P.most_sums]]
    return kept


def suspects_in(groups: Groups, sites: Sites) -> tuple[F64, Mask]:
    """Returns the number of suspects in each group, and whether nearly all its stacks are some."""
    suspect = are_suspects(sites)
    count = groups.total(suspect.astype(np.float64))
    told = groups.total(((sites.born >= P.sum_enough_births) | suspect).astype(np.float64))
    return count, count >= P.sum_alike * np.maximum(1, told)


def choose(groups: Groups, of_groups: Sites, sites: Sites, alike: Mask) -> list[int]:
    """Chooses groups to report, which have no stacks in common. ``sites``: the single stacks.

    ``alike``: groups whose stacks form one suspect even if they are suspects themselves. Rates
    are compared in blocks: one large block that was allocated once explains nothing.
    """
    rates = of_groups.blocks_per_min
    flagged = np.flatnonzero(are_suspects(of_groups))
    flagged = flagged[np.argsort(-rates[flagged], kind="stable")][: P.most_flagged]
    # Large outer groups come before the deeper ones in them.
    flagged = flagged[np.argsort(-groups.sizes[flagged], kind="stable")]
    explained = groups.total(np.where(are_suspects(sites), sites.blocks_per_min, 0))
    leaking = groups.total((sites.code == _LEAKING).astype(np.float64)) > 0
    clearer = leaking & (of_groups.code != _LEAKING)
    chosen: list[int] = []
    covered = np.zeros(len(groups.order), np.bool_)
    for group in flagged.tolist():
        start, end = groups.starts[group], groups.ends[group]
        within = (groups.starts[flagged] >= start) & (groups.ends[flagged] <= end)
        inner = flagged[within & (flagged != group)]
        least = P.sum_explained * rates[group]
        hides = of_groups.code[group] != _LEAKING and (of_groups.code[inner] == _LEAKING).any()
        if covered[start:end].any() or clearer[group] or hides or (rates[inner] >= least).any():
            continue
        if alike[group] or max(explained[group], rates[_outermost(groups, inner)].sum()) < least:
            chosen.append(group)
            covered[start:end] = True
    return chosen


def _outermost(groups: Groups, inner: Rows) -> list[int]:
    """Returns the groups that are not inside another group; the input has larger ones first."""
    kept: list[int] = []
    for group in inner.tolist():
        start, end = groups.starts[group], groups.ends[group]
        if not any(groups.starts[k] <= start and end <= groups.ends[k] for k in kept):
            kept.append(group)
    return kept


def common_length(paths: Sequence[Frames]) -> int:
    """Returns how many first frames all paths share."""
    low, high = min(paths), max(paths)  # What these two share, all share
    return next(compress(count(), map(ne, low, high)), min(len(low), len(high)))


def shared_frame(stacks: CallStacks, members: list[int]) -> int | None:
    """Returns the outermost return address up to which stacks agree, from the allocation on."""
    all_frames = [stacks.frames(index) or () for index in members]
    shared = common_length(all_frames)
    return all_frames[0][shared - 1] if shared else None


_INNOCENT: Final = Verdict.CACHE, Verdict.START_UP


class SharedCallers:
    """The call tree: all stacks, ordered by their frames from the outermost one inwards."""

    def __init__(self) -> None:
        self._count = 0
        self._paths: list[Frames] = []
        self._stacks: list[int] = []
        self._shared: list[int] = []
        """Number of outermost frames that each path shares with the one before it."""

    def extend(self, stacks: CallStacks, count: int, most: int) -> bool:
        """Adds up to ``most`` of the first ``count`` stacks. Returns whether there were any."""
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
        """Returns nodes with at least ``P.node_least_stacks`` wanted stacks, inner nodes first."""
        chosen = np.flatnonzero(wanted[self._stacks])
        if not len(chosen):
            nothing = np.empty(0, np.intp)
            return Groups(nothing, nothing, nothing, [])
        # Two that are not neighbors share the minimum over all neighbors in between.
        shared = np.minimum.reduceat(np.array(self._shared), np.append(0, chosen[:-1] + 1))
        nodes = [n for n in shared_prefixes(shared.tolist()) if n[1] - n[0] >= P.node_least_stacks]
        keys = [self._paths[chosen[start]][:depth] for start, _, depth in nodes]
        bounds = np.array(nodes, np.intp).reshape(-1, 3)
        return Groups(np.array(self._stacks)[chosen], bounds[:, 0], bounds[:, 1], keys)


def shared_prefixes(shared: list[int]) -> list[tuple[int, int, int]]:
    """Returns (start, end, depth) of longest stretches whose members share ``depth`` first frames,
    inner ones first. ``shared``: number that each member shares with the one before it.
    """
    nodes = []
    open_nodes: list[tuple[int, int]] = []  # Start and depth of open ones, by depth
    for at, depth in enumerate([*shared[1:], 0], start=1):
        start = at - 1
        while open_nodes and open_nodes[-1][1] > depth:
            start, inner = open_nodes.pop()
            nodes.append((start, at, inner))
        if depth and (not open_nodes or open_nodes[-1][1] < depth):
            open_nodes.append((start, depth))
    return nodes


def may_leak(census: Census, sites: Sites) -> Mask:
    """Returns a mask of the stacks that may have a part in a leak, however small."""
    age_s = np.maximum(P.part_least_age_s, P.part_lifetimes * sites.most_live_s)
    begin, end = census.edges_s[:-1, None], census.edges_s[1:, None]
    older = np.clip((census.now_s - age_s - begin) / (end - begin), 0, 1)
    kept: F64 = (census.alive * older).sum(axis=0)
    return (kept >= 0.5) & ~(sites.have(_INNOCENT) & (sites.alive >= P.innocent_least_blocks))


def parts_of_nodes(nodes: Groups, parts: Mask, sites: Sites) -> tuple[Groups, Mask, Rows]:
    """Returns groups of the stacks of each node that may leak, and two figures for each group.

    The figures are whether it is one leak even if its stacks are suspects themselves, and the
    number of all stacks below the node. If only one inner node has such stacks, it stands for
    the outer one.
    """
    count, alike = suspects_in(nodes, sites)
    narrow = nodes.only(parts)
    enough = np.flatnonzero(narrow.sizes >= P.node_least_stacks)
    span = narrow.starts[enough] * (len(narrow.order) + 1) + narrow.ends[enough]
    kept = enough[np.sort(np.unique(span, return_index=True)[1])]
    return narrow.select(kept), (alike & (count >= P.node_many_suspects))[kept], nodes.sizes[kept]
