"""Groups of stacks by shared frames, against ones made one by one; and which sums are reported."""

from collections import defaultdict
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest

from tracelloc.heap.stacks import Stacks
from tracelloc.model.stacks import Frames, StackFlag
from tracelloc.model.verdicts import CODE_OF, Sites, Verdict
from tracelloc.verdict import grouping
from tracelloc.verdict.findings import Group
from tracelloc.verdict.multistack import most_specific
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
    prefixes = grouping.Prefixes(WRAPPERS.__contains__)
    while prefixes.extend(stacks, 50):
        pass
    rows = np.array([row for row in range(len(stacks)) if row % 5])
    groups = grouping.group_by_prefix(prefixes.numbers(len(stacks)), rows)
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


@pytest.mark.parametrize("seed", range(4))
def test_nodes_are_where_stacks_part(seed: int) -> None:
    """Every set of stacks that share outermost frames, once, with all frames that they share."""
    stacks = any_stacks(seed)
    callers = grouping.SharedCallers()
    while callers.extend(stacks, len(stacks), 7):
        pass
    wanted = np.random.default_rng(seed).random(len(stacks)) < 0.8
    sharing = defaultdict(set)
    for row in np.flatnonzero(wanted).tolist():
        path = (stacks.frames(row) or ())[::-1]
        for depth in range(1, len(path) + 1):
            sharing[path[:depth]].add(row)
    expected: dict[frozenset[int], tuple[int, ...]] = {}
    for path in sorted(sharing, key=len):
        if len(sharing[path]) >= P.node_least_stacks:
            expected[frozenset(sharing[path])] = path
    groups = callers.groups(wanted)
    found = {frozenset(groups.members(n).tolist()): groups.keys[n] for n in range(len(groups))}
    assert found == expected
    assert len(groups) == len(found) > 10
    # Inner ones first.
    assert all(
        not (groups.starts[n] <= groups.starts[m] and groups.ends[m] <= groups.ends[n])
        for n in range(len(groups)) for m in range(n + 1, len(groups))
    )  # fmt: skip


def test_what_is_grouped_and_hidden() -> None:
    groups = grouping.group_by_prefix(np.full((3, len(P.prefix_depths)), -1), np.arange(3))
    assert len(groups) == 0
    assert groups.total(np.ones(3)).tolist() == []
    assert groups.largest(np.ones(3)).tolist() == []
    assert len(grouping.SharedCallers().groups(np.zeros(0, np.bool_))) == 0
    assert grouping.shared_prefixes([0]) == []
    assert grouping.common_length([(1, 2, 3), (1, 2)]) == 2
    assert grouping.common_length([(1, 2, 3), (2, 2), (1, 2, 3)]) == 0
    assert grouping.common_length([(1, 2, 4), (1, 2, 3), (1, 2, 3, 5)]) == 2
    assert grouping.shared_prefixes([0, 2, 1, 0, 3]) == [(0, 2, 2), (0, 3, 1), (3, 5, 3)]
    assert chosen((GROWING, 100.0), (LEAKING, 10.0)) == [1]
    assert chosen((LEAKING, 100.0), (LEAKING, 10.0)) == [0]
    assert chosen((GROWING, 100.0), (GROWING, 10.0)) == [0]
    assert chosen((GROWING, 100.0), (GROWING, 80.0)) == [1]
    group = partial(Group, bytes_kept=np.ones(2), frame=None, retracted=0)
    leaking = group(sites_of((LEAKING, 10.0)), np.array([0, 1]), sharing=2)
    growing = group(sites_of((GROWING, 100.0)), np.array([0, 1]), sharing=2)
    parts = np.ones(4, np.bool_)
    assert most_specific([leaking], [growing], parts) == [leaking]
    assert most_specific([growing], [leaking], parts) == [growing]
    more = replace(leaking, sites=sites_of((LEAKING, 1000.0)))
    assert most_specific([growing], [more], parts) == [more]


BUSY, GROWING, LEAKING = (CODE_OF[v] for v in (Verdict.BUSY, Verdict.GROWING, Verdict.LEAKING))


def sites_of(*judged: tuple[int, float]) -> Sites:
    """Sites of (verdict, blocks a minute)."""
    columns = {field.name: np.zeros(len(judged)) for field in fields(Sites)}
    return replace(
        Sites(**columns),  # type: ignore[arg-type]
        code=np.array([code for code, _ in judged], np.uint8),
        blocks_per_min=np.array([rate for _, rate in judged]),
        rate_bytes_per_min=np.array([rate for _, rate in judged]),
        confidence=np.full(len(judged), 0.5),
        rising_only=np.zeros(len(judged), np.bool_),
    )


def chosen(outer: tuple[int, float], inner: tuple[int, float]) -> list[int]:
    """The groups that are reported: 0 has four stacks, and 1 has two of these."""
    groups = grouping.Groups(np.arange(4), np.array([0, 0]), np.array([4, 2]), [(0, 0), (1, 0)])
    stacks = sites_of(*[(BUSY, 0.0)] * 4)
    return grouping.choose(groups, sites_of(outer, inner), stacks, np.zeros(2, np.bool_))
