"""Blocks that nothing points to, found in the memory of real programs while they run."""

from collections import Counter

import numpy as np
import pytest

from tests.harness import PATIENCE_S, Targets, frames_of
from tests.sessions import tracing
from tracelloc.model.blocks import Blocks
from tracelloc.record.reachability.search import PointerSearch
from tracelloc.record.session.session import Session
from tracelloc.record.symbolization.symbolizer import Symbolizer

pytestmark = [pytest.mark.bpf, pytest.mark.long]

ROUNDS = 400
VERDICT_S = 5 * PATIENCE_S  # As long as the program runs: the machine may be busy
LOST = {"drop": 1, "drop_pair": 2, "drop_ring": 2}
KEPT = {"keep": 1, "keep_inside": 1, "keep_marked": 1, "keep_in_code": 1}


def by_function(session: Session, blocks: Blocks) -> Counter[str]:
    """Blocks per innermost function."""
    symbolizer = Symbolizer(session.root.space)
    counts: Counter[str] = Counter()
    for stack, count in zip(*np.unique(blocks.stack, return_counts=True), strict=True):
        addresses = session.root.heap.stacks.frames(int(stack)) or ()
        counts[str(frames_of(symbolizer, addresses)[0].symbol)] += int(count)
    return counts


def test_each_block_that_nothing_points_to(targets: Targets) -> None:
    target = targets.c("lost")
    with tracing(target, reads_memory=False) as session:
        assert target.ask(f"{ROUNDS} 0") == "done"
        session.snapshot()
        blocks = session.root.heap.table.blocks()
        found = PointerSearch(session.root.process, lambda: [blocks])
        reachable = found.are_reachable(blocks.address)
        assert by_function(session, blocks.select(reachable)) == {
            name: ROUNDS * blocks for name, blocks in KEPT.items()
        }
        assert by_function(session, blocks.select(~reachable)) == {
            name: ROUNDS * blocks for name, blocks in LOST.items()
        }
        assert found.bits.edges_left_out == 0
        assert target.ask("1 0") == "done"
