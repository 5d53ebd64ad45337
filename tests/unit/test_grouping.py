"""Groups of stacks by shared frames, against groups that are made one by one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from tracelloc.heap.stacks import Stacks
from tracelloc.model.stacks import Frames, StackFlag
from tracelloc.verdict.grouping import Prefixes, group_by_prefix
from tracelloc.verdict.parameters import P

WRAPPERS = {1, 2}


def any_stacks(seed: int) -> Stacks:
    """Stacks of few frames, so that many share some; 1 and 2 only pass allocations on."""
    random = np.random.default_rng(seed)
    stacks = Stacks()
    for stack_id in range(1, 200):
        frames = tuple(random.integers(1, 7, random.integers(1, 15)).tolist())
        stacks.add(stack_id, frames, StackFlag(0))
    return stacks


def innermost(frames: Frames, depth: int) -> Frames | None:
    """So many frames after the wrappers, with those; None if there are not so many."""
    skipped = 0
    while skipped < len(frames) - 1 and frames[skipped] in WRAPPERS:
        skipped += 1
    return frames[: skipped + depth] if len(frames) >= skipped + depth else None


@pytest.mark.parametrize("seed", range(4))
def test_groups_by_their_innermost_frames(seed: int) -> None:
    """Every set of two and more, at whatever depth, once; the deepest depth names it."""
    stacks = any_stacks(seed)
    prefixes = Prefixes(WRAPPERS.__contains__)
    while prefixes.extend(stacks, 50):
        pass
    rows = np.array([row for row in range(len(stacks)) if row % 5])
    groups = group_by_prefix(prefixes.numbers(len(stacks)), rows)
    expected: dict[frozenset[int], int] = {}
    for level, depth in enumerate(P.prefix_depths):
        sharing = defaultdict(set)
        for row in rows.tolist():
            prefix = innermost(stacks.frames(row) or (), depth)
            if prefix is not None:
                sharing[prefix].add(row)
        expected |= {frozenset(rows): level for rows in sharing.values() if len(rows) > 1}
    found = {frozenset(groups.members(n).tolist()): groups.keys[n][0] for n in range(len(groups))}
    assert len(groups) == len(found) > 50
    assert found == expected
    weights = np.random.default_rng(seed).random(len(stacks))
    sums = [weights[groups.members(n)].sum() for n in range(len(groups))]
    np.testing.assert_allclose(groups.total(weights), sums)
    largest = [weights[groups.members(n)].max() for n in range(len(groups))]
    np.testing.assert_array_equal(groups.largest(weights), largest)


def test_no_groups() -> None:
    groups = group_by_prefix(np.full((3, len(P.prefix_depths)), -1), np.arange(3))
    assert len(groups) == 0
    assert groups.total(np.ones(3)).tolist() == []
    assert groups.largest(np.ones(3)).tolist() == []
