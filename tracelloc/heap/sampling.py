"""Byte-weighted sampling: how gaps are drawn, and what a sampled block stands for.

The method is that of Go's and tcmalloc's heap profilers. Sample points lie along all allocated
bytes, at exponentially distributed distances with a given mean; a block is sampled if at least
one point falls into it. A block of s bytes is thus sampled with probability 1 - exp(-s / mean),
and stands for the inverse of that many blocks: an unbiased estimate for all sizes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

GIVEN: Final = 0
"""Stands for the mean if the program itself took the samples: each has its own weight."""
GAPS: Final = 1 << 16
"""Number of gaps to draw from, at even steps of their distribution."""


def gaps(mean_bytes: int) -> npt.NDArray[np.uint64]:
    """Whole numbers of bytes, at least 1, exponentially distributed with this mean."""
    quantiles = (np.arange(GAPS) + 0.5) / GAPS
    lengths = -np.log1p(-quantiles)
    # The tail of the last step is cut off; the scaling restores the mean.
    lengths *= mean_bytes / lengths.mean()
    return np.maximum(np.ceil(lengths), 1).astype(np.uint64)


def weights(size_bytes: npt.NDArray[np.uint64], mean_bytes: int) -> npt.NDArray[np.float64]:
    """How many blocks of its size each sampled block stands for; at least 1."""
    inverse: npt.NDArray[np.float64] = np.expm1(np.maximum(size_bytes, 1) / -float(mean_bytes))
    return -1 / inverse
