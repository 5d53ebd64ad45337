"""How the blocks of a heap are grouped by size."""

from __future__ import annotations

import numpy as np
import pytest

from tracelloc.record.heapwalk.kinds import bounds_of, size_groups


@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        (8, (8, 8)), (1032, (1032, 1032)), (1033, (1033, 1280)), (1280, (1033, 1280)),
        (1281, (1281, 1536)), (2048, (1793, 2048)), (2049, (2049, 2560)),
        (131056, (114689, 131072)), (1 << 40, ((7 << 37) + 1, 1 << 40)),
    ],
)  # fmt: skip
def test_bounds(size: int, bounds: tuple[int, int]) -> None:
    assert bounds_of(int(size_groups(np.array([size], np.uint64))[0])) == bounds


def test_every_size_lies_within_its_group() -> None:
    sizes = np.arange(1, 1 << 20, 7, dtype=np.uint64)
    groups = size_groups(sizes)
    assert np.all(np.diff(groups.astype(np.int64)) >= 0)
    for size, group in zip(sizes[::97].tolist(), groups[::97].tolist(), strict=True):
        least, most = bounds_of(group)
        assert least <= size <= most
