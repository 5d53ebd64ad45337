"""Lost blocks by slices of time: what is known of a search is not computed again."""

import numpy as np
import pytest

from tests.searches import add_search
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.blocks import Blocks


def some_blocks(count: int, until_ns: int) -> Blocks:
    rng = np.random.default_rng(3)
    return Blocks(
        np.arange(1, count + 1, dtype=np.uint64) * 16,
        rng.integers(1, 100, count).astype(np.uint64),
        rng.integers(0, until_ns, count).astype(np.uint64),
        rng.integers(0, 7, count).astype(np.uint32),
        np.zeros(count, np.uint32),
    )


@pytest.mark.parametrize(
    "later_ns",
    [[0, 10, 20, 30, 40, 50, 60], [0, 10, 20, 30, 40, 55, 70, 90], [0, 40, 70]],
    ids=["the same", "new slices", "merged ones"],
)
def test_searches_and_slices_that_were_merged_since(later_ns: list[int]) -> None:
    blocks, edges_ns = some_blocks(1000, 45), np.array([0, 10, 20, 30, 40, 50, 60], np.int64)
    unreachable, fresh = UnreachableBlocks(), UnreachableBlocks()
    for lost in (0, 1000):
        for each in (unreachable, fresh):
            add_search(each, blocks, np.zeros(len(blocks), np.bool_))
        assert int(unreachable.table(edges_ns).count.sum()) == lost
        assert int(unreachable.last_counts()[1].sum()) == 1000
    found, wanted = (each.table(np.array(later_ns, np.int64)) for each in (unreachable, fresh))
    assert found.count.tolist() == wanted.count.tolist()
    assert found.size_bytes.tolist() == wanted.size_bytes.tolist()
    assert int(found.size_bytes.sum()) == int(blocks.size.sum())
    add_search(unreachable, blocks, np.ones(len(blocks), np.bool_))
    assert int(unreachable.last_counts()[1].sum()) == 0
