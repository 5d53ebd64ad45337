"""Ten thousand stacks: what the thread that draws pays."""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from tests.ui.screens import ViewApp, build_tree, lines_of, path, shown_on, weights
from tracelloc.show.presentation.calltree import Step
from tracelloc.ui.flame import FlameView
from tracelloc.ui.nodes import Nodes
from tracelloc.ui.stacknames import Search
from tracelloc.ui.tree import TreeView

REFRESH_S = 0.05  # The budget. Processor time is measured, which others' load makes longer, too.


def large() -> Nodes:
    """20 frames each; they part early and again at the end."""
    rng = random.Random(1)
    stacks = []
    for n in range(10_000):
        head = [f"mod::part_{k}_{rng.randrange(3) if k % 2 else 0}" for k in range(12)]
        tail = [f"mod::leaf_{k}_{n % 500 if k < 5 else n}" for k in range(8)]
        size = int(1000 * rng.paretovariate(0.8))
        stacks.append((n, path(*head, *tail), weights(size, 2, rng.randrange(-9, 99))))
    return Nodes(build_tree(stacks, Step("app", None)), search=Search("leaf_3"))


def median_s(app: ViewApp, work: Callable[[], None]) -> float:
    times = []
    for _ in range(7):
        started = time.process_time()
        work()
        lines_of(app)
        times.append(time.process_time() - started)
    return statistics.median(times)


async def test_trees() -> None:
    nodes = large()
    for view in (FlameView(), TreeView()):
        async with shown_on(view, (150, 50)) as (app, _pilot):
            assert median_s(app, partial(view.show, nodes, at_once=True)) < 2 * REFRESH_S
            assert median_s(app, partial(view.action_cursor, 1)) < 2 * REFRESH_S
