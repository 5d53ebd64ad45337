"""Stacks in the order of their outermost frames, against nodes that are made one by one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from tests.unit.test_grouping import any_stacks
from tracelloc.verdict.grouping import SharedCallers, common_length, shared_prefixes
from tracelloc.verdict.parameters import P


@pytest.mark.parametrize("seed", range(4))
def test_nodes_are_where_stacks_part(seed: int) -> None:
    """Every set of stacks that share outermost frames, once, with all frames that they share."""
    stacks = any_stacks(seed)
    callers = SharedCallers()
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


def test_without_stacks() -> None:
    assert len(SharedCallers().groups(np.zeros(0, np.bool_))) == 0
    assert shared_prefixes([0]) == []
    assert common_length([(1, 2, 3), (1, 2)]) == 2
    assert common_length([(1, 2, 3), (2, 2), (1, 2, 3)]) == 0
    assert common_length([(1, 2, 4), (1, 2, 3), (1, 2, 3, 5)]) == 2
    assert shared_prefixes([0, 2, 1, 0, 3]) == [(0, 2, 2), (0, 3, 1), (3, 5, 3)]
