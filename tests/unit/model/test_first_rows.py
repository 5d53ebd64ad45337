"""The first of many blocks, without sorting all."""

import numpy as np
import pytest

from tracelloc.model.blocks import first_rows


@pytest.mark.parametrize("n", [0, 1, 7, 39, 40, 41])
@pytest.mark.parametrize("kinds", [(1, 1), (1, 9), (2, 2), (9, 3), (1000, 1000)])
def test_they_are_those_of_all_sorted(n: int, kinds: tuple[int, int]) -> None:
    """``kinds``: how many values the first two keys have."""
    random = np.random.default_rng(1)
    for _ in range(50):
        keys = [random.integers(0, most, 40).astype(np.uint64) for most in (*kinds, 1 << 40)]
        assert first_rows(n, *keys).tolist() == np.lexsort(keys[::-1])[:n].tolist()
