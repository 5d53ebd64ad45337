"""Trees of hand-made stacks: every weight is where it belongs."""

import random

import numpy as np

from tests.trees import build_tree
from tracelloc.show.presentation.calltree import Step
from tracelloc.show.presentation.profile import Metric


def path(*names: str) -> list[Step]:
    return [Step(name, "/app") for name in names]


def weights(size: int, count: int = 1) -> dict[Metric, int]:
    return {
        Metric.BYTES: size, Metric.BLOCKS: count, Metric.ALLOCATED: 2 * size, Metric.GROWTH: -size,
        Metric.PEAK: 3 * size, Metric.TEMPORARY: size // 2,
    }  # fmt: skip


def test_trees_add_up() -> None:
    tree = build_tree(
        [
            (7, path("main", "a", "b"), weights(100)),
            (8, path("main", "a"), weights(10, 3)),
            (9, path("main", "c"), weights(1)),
            (5, path("start"), weights(1000)),
        ],
        Step("app", None),
    )
    assert [step.name for step in tree.steps] == ["app", "main", "a", "b", "c", "start"]
    assert tree.parent.tolist() == [0, 0, 1, 2, 1, 0]
    assert tree.depth.tolist() == [0, 1, 2, 3, 2, 1]
    assert tree.totals[Metric.BYTES].tolist() == [1111, 111, 110, 100, 1, 1000]
    assert tree.own[Metric.BYTES].tolist() == [0, 0, 10, 100, 1, 1000]
    assert tree.totals[Metric.BLOCKS].tolist() == [6, 5, 4, 1, 1, 1]
    assert tree.totals[Metric.GROWTH].tolist() == [-1111, -111, -110, -100, -1, -1000]
    assert list(tree.stacks) == [None, None, 8, 7, 9, 5]
    tree = build_tree(
        [(0, [Step("f", "/a")], weights(1)), (1, [Step("f", "/b")], weights(2))], Step("app", None)
    )
    assert len(tree) == 3
    tree = build_tree([(0, path("f", "f", "f"), weights(8))], Step("app", None))
    assert tree.depth.tolist() == [0, 1, 2, 3]
    assert tree.totals[Metric.BYTES].tolist() == [8, 8, 8, 8]
    tree = build_tree([], Step("app", None))
    assert len(tree) == 1
    assert tree.totals[Metric.BYTES].tolist() == [0]
    rng = random.Random(4)
    names = [[rng.choice("abcd") for _ in range(rng.randrange(1, 9))] for _ in range(500)]
    stacks = [(n, path(*chain), weights(rng.randrange(99))) for n, chain in enumerate(names)]
    tree = build_tree(stacks, Step("app", None))
    for metric in Metric:
        own, totals = tree.own[metric], tree.totals[metric]
        assert own.sum() == totals[0] == sum(w[metric] for _, _, w in stacks)
        for node in range(len(tree)):
            children = np.flatnonzero(tree.parent[1:] == node) + 1
            assert totals[node] == own[node] + totals[children].sum()
