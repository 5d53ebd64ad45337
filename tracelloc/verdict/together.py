"""Stacks that leak together: one forgotten object made of several blocks.

Their onsets agree, they come from one caller, and in every slice of time they leave
survivors in the same proportion, 1:1 or 2:1 or so: much more exactly than two leaks would
that only follow the same load (Pearson's chi-squared over the slices is far below its
expectation).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import F64, I64, Census
from tracelloc.heap.stacks import Frames, Stacks
from tracelloc.verdict.grouping import common_length
from tracelloc.verdict.judgement import CODE_OF, Sites, Verdict
from tracelloc.verdict.rule import Rows

_MOST: Final = 50
"""Leaking stacks that are compared with each other, by rate."""
_PART: Final = 10
"""Of these at a time: some milliseconds."""
_OWN_FRAMES: Final = 4
"""Innermost frames that stacks of one object may have for themselves."""
_ONSETS_S: Final = 10.0
_ONSETS_PART: Final = 0.05
"""Onsets agree within so many seconds, or this part of the time since."""
_SETTLED_S: Final = 30.0
"""Younger blocks may still be freed."""
_FEWEST_SLICES: Final = 8
_CHI_SQUARED: Final = 0.35
"""For each degree of freedom; 1 is expected of leaks that have nothing to do with each other."""
_RATIO: Final = 0.02
"""Objects have whole numbers of parts: by how much the ratio of two may be off."""


def find_tied(
    census: Census, sites: Sites, stacks: Stacks, free: Rows
) -> Generator[None, None, list[Rows]]:
    """Stacks that leak together, two at least in each list. ``free``: in no group yet."""
    leaking = free[sites.code[free] == CODE_OF[Verdict.LEAKING]]
    order = leaking[np.argsort(-sites.rate_bytes_per_min[leaking], kind="stable")][:_MOST]
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
        if at % _PART == 0:
            yield None
    return [np.sort(order[others]) for others in tied if len(others) > 1]


@dataclass(frozen=True, slots=True)
class _Row:
    """A stack that leaks."""

    alive: I64
    """Blocks, per slice."""
    since_s: float
    frames: Frames


def _belong_together(census: Census, one: _Row, two: _Row) -> bool:
    since_s = census.now_s - min(one.since_s, two.since_s)
    if abs(one.since_s - two.since_s) > max(_ONSETS_S, _ONSETS_PART * since_s):
        return False
    frames = one.frames, two.frames
    shared = shared_callers(frames)
    if not shared or max(map(len, frames)) - shared > _OWN_FRAMES:
        return False
    edges = census.edges_s
    whole = edges[:-1] >= max(one.since_s, two.since_s)
    whole &= edges[1:] <= census.now_s - _SETTLED_S
    return in_proportion(one.alive[whole], two.alive[whole])


def shared_callers(stacks: tuple[Frames, ...]) -> int:
    """How many outermost frames all of these have in common."""
    return common_length([frames[::-1] for frames in stacks])


def shared_caller(stacks: Stacks, members: list[int]) -> int | None:
    """The innermost return address that all of these share as a caller."""
    all_frames = tuple(stacks.frames(index) or () for index in members)
    shared = shared_callers(all_frames)
    return all_frames[0][-shared] if shared else None


def in_proportion(one: F64 | I64, two: F64 | I64) -> bool:
    """Whether one row of counts is a whole multiple of the other, closer than by chance."""
    both = one + two
    counted = both > 0
    if np.count_nonzero(counted) < _FEWEST_SLICES or not one.any() or not two.any():
        return False
    ratio = max(one.sum(), two.sum()) / min(one.sum(), two.sum())
    if abs(ratio - round(ratio)) > _RATIO * ratio:
        return False
    one, both = one[counted], both[counted]
    share = one.sum() / both.sum()
    chi_squared = ((one - share * both) ** 2 / (share * (1 - share) * both)).sum()
    return bool(chi_squared < _CHI_SQUARED * (len(both) - 1))
