"""Leaks that are split over many call stacks: sums over the frames that they share.

A function that leaks and has two hundred callers leaks through two hundred stacks, each
of them too little to notice. Stacks are therefore also added up by their innermost
frames, those of the C library and the C++ runtime left out, at several depths. The sums
are judged like stacks, and reported by these rules:

* where most of what a sum leaks comes from one deeper sum, that one is looked at instead;
* where its stacks are judged alike (nearly all of them suspects), they are one suspect;
* where the deeper sums and stacks that are suspects explain most of it, these are;
* else it is a leak split over its stacks: one suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import I64, Population
from tracelloc.heap.stacks import Frames, Stacks
from tracelloc.verdict.judgement import Verdict
from tracelloc.verdict.rule import Rows
from tracelloc.verdict.sites import CODE_OF, Circumstances, Sites

DEPTHS: Final = (1, 2, 3, 5, 8, 12)
"""Innermost frames by which stacks are added up."""
_FEWEST_NEW: Final = 4
"""Blocks alive from the newer half of the time, for a sum to be worth judging."""
_MOST_SUMS: Final = 1000
_EXPLAINED: Final = 0.7
"""Of a sum's rate."""
_ALIKE: Final = 0.8
"""Of a sum's stacks that have made enough blocks to tell."""
_ENOUGH: Final = 20
"""Blocks made, to tell that a stack does not leak."""
_MOST_FLAGGED: Final = 100
_SUSPECT: Final = (CODE_OF[Verdict.LEAKING], CODE_OF[Verdict.GROWING])

Key = tuple[int, int]
"""Depth and number of a prefix: who a sum is, from look to look."""


class Prefixes:
    """The innermost frames of each stack, numbered per depth. Stacks never change."""

    def __init__(self, is_wrapper: Callable[[int], bool]) -> None:
        """``is_wrapper``: whether a return address lies where allocations only pass."""
        self._is_wrapper = is_wrapper
        self._known: list[dict[Frames, int]] = [{} for _ in DEPTHS]
        self._numbers = np.empty((0, len(DEPTHS)), np.int64)

    def extend(self, stacks: Stacks, most: int) -> bool:
        """Numbers some more stacks. Whether there were any."""
        known = len(self._numbers)
        fresh = range(known, min(len(stacks), known + most))
        if fresh:
            rows = [self._of(stacks.frames(index)) for index in fresh]
            self._numbers = np.concatenate([self._numbers, np.array(rows, np.int64)])
        return len(fresh) > 0

    def numbers(self, count: int) -> I64:
        """A row per stack, a column per depth; -1 where the stack is not so deep."""
        return self._numbers[:count]

    def _of(self, frames: Frames | None) -> list[int]:
        frames = frames or ()
        skipped = self.skipped(frames)
        row = []
        for depth, known in zip(DEPTHS, self._known, strict=True):
            prefix = frames[: skipped + depth]
            enough = len(prefix) == skipped + depth
            row.append(known.setdefault(prefix, len(known)) if enough else -1)
        return row

    def skipped(self, frames: Frames) -> int:
        """How many innermost frames only pass allocations on."""
        count = 0
        while count < len(frames) - 1 and self._is_wrapper(frames[count]):
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class Sums:
    """Groups of stacks, added up."""

    keys: list[Key]
    members: list[Rows]
    """Rows of the stacks' population."""
    population: Population
    """A row per sum."""

    def circumstances(self, of_stacks: Circumstances) -> Circumstances:
        """The sums': what their stacks lose at most."""
        floors = [of_stacks.loss_floor[members].max() for members in self.members]
        return replace(of_stacks, loss_floor=np.array(floors))


def add_up(population: Population, numbers: I64) -> Sums | None:
    """All sums that hold new blocks of at least two stacks. None if there are none.

    ``numbers``: of ``Prefixes``, a row per site of the population.
    """
    newer = population.edges_s[:-1] >= population.now_s / 2
    new_blocks = population.alive[:, newer].sum(axis=1)
    rows = np.flatnonzero(population.born.sum(axis=1) > 0)
    keys: list[Key] = []
    members: list[Rows] = []
    seen: set[bytes] = set()
    # The deepest first: where depths don't differ, the most specific one stands.
    for level in reversed(range(len(DEPTHS))):
        for number, group in _groups(numbers[rows, level], rows):
            if new_blocks[group].sum() < _FEWEST_NEW or group.tobytes() in seen:
                continue
            seen.add(group.tobytes())
            keys.append((level, number))
            members.append(group)
    if not members:
        return None
    if len(members) > _MOST_SUMS:
        most = np.argsort([-new_blocks[group].sum() for group in members])[:_MOST_SUMS].tolist()
        keys, members = [keys[n] for n in most], [members[n] for n in most]
    starts = np.cumsum([0, *(len(group) for group in members[:-1])])
    return Sums(keys, members, population.sums(np.concatenate(members), starts))


def _groups(numbers: I64, rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Those of the rows that share a number, if there are several."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        if end - start > 1 and ordered[start] >= 0:
            yield int(ordered[start]), rows[order[start:end]]


def choose(sums: Sums, of_sums: Sites, sites: Sites) -> list[int]:
    """Which sums to report; they have no stacks in common. ``sites``: the single stacks."""
    # Codes of verdicts ascend: what leaks comes before what grows.
    suspect = np.isin(sites.code, _SUSPECT)
    flagged = [n for n in range(len(sums.keys)) if of_sums.code[n] in _SUSPECT]
    flagged.sort(key=lambda n: -float(of_sums.rate_bytes_per_min[n]))
    del flagged[_MOST_FLAGGED:]
    # Outer sums (shallow, large) before the deeper ones in them.
    flagged.sort(key=lambda n: (sums.keys[n][0], -len(sums.members[n])))
    chosen: list[int] = []
    covered: set[int] = set()
    for number in flagged:
        members = sums.members[number]
        if covered.intersection(members.tolist()):
            continue
        rate = float(of_sums.rate_bytes_per_min[number])
        inner = [
            other
            for other in flagged
            if sums.keys[other][0] > sums.keys[number][0]
            and bool(np.isin(sums.members[other], members).all())
        ]
        clearer = sites.code[members].min() < of_sums.code[number]
        rates = of_sums.rate_bytes_per_min[inner]
        if clearer or (rates >= _EXPLAINED * rate).any():
            continue
        told = members[(sites.born[members] >= _ENOUGH) | suspect[members]]
        alike = np.count_nonzero(suspect[told]) >= _ALIKE * max(1, len(told))
        explained = float(sites.rate_bytes_per_min[members[suspect[members]]].sum())
        by_sums = float(of_sums.rate_bytes_per_min[_outermost(inner, sums)].sum())
        if alike or max(explained, by_sums) < _EXPLAINED * rate:
            chosen.append(number)
            covered.update(members.tolist())
    return chosen


def _outermost(numbers: list[int], sums: Sums) -> list[int]:
    """Those that are in no other one of them."""
    taken: set[int] = set()
    kept = []
    for number in numbers:
        members = sums.members[number].tolist()
        if not taken.intersection(members):
            taken.update(members)
            kept.append(number)
    return kept


def shared_frame(stacks: Stacks, members: list[int]) -> int | None:
    """The outermost return address that all these share from the allocation on."""
    shared: int | None = None
    all_frames = [stacks.frames(index) or () for index in members]
    for frames in zip(*all_frames, strict=False):
        if any(frame != frames[0] for frame in frames):
            break
        shared = frames[0]
    return shared
