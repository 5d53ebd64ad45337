"""Byte-weighted sampling: how gaps are drawn, and what a sampled block stands for.

The method is that of Go's and tcmalloc's heap profilers. Sample points lie along all allocated
bytes, at exponentially distributed distances with a given mean; a block is sampled if at least
one point falls into it. A block of s bytes is thus sampled with probability 1 - exp(-s / mean),
and stands for the inverse of that many blocks: an unbiased estimate for all sizes.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.blocks import Blocks
from tracelloc.model.events import WEIGHT_BITS, WEIGHT_MANTISSA_BITS
from tracelloc.model.figures import F64, U64

GIVEN: Final = 0  # As the mean: the program took the samples, each with a weight
GAPS: Final = 1 << 16  # Number of gaps to draw from, at even steps of their distribution


def gaps(mean_bytes: int) -> npt.NDArray[np.uint64]:
    """Returns gaps between samples: whole bytes, at least 1, exponential with this mean."""
    quantiles = (np.arange(GAPS) + 0.5) / GAPS
    lengths = -np.log1p(-quantiles)
    # The tail of the last step is cut off; the scaling restores the mean.
    lengths *= mean_bytes / lengths.mean()
    return np.maximum(np.ceil(lengths), 1).astype(np.uint64)


def weighed_blocks(blocks: Blocks) -> Blocks:
    """Splits ``size`` of blocks that a program itself has sampled into sizes and weights."""
    size, weight = weighed(blocks.size)
    return replace(blocks, size=size, weight=weight)


def weighed(coded: U64) -> tuple[U64, F64]:
    """Decodes (sizes in bytes, blocks each stands for): see ``WEIGHT_`` in ``probes/event.h``."""
    code = (coded & np.uint64((1 << WEIGHT_BITS) - 1)).astype(np.int64)
    mantissa = code & (1 << WEIGHT_MANTISSA_BITS) - 1
    exponent = (code >> WEIGHT_MANTISSA_BITS).astype(np.int32)
    weight = np.ldexp(1 + mantissa / (1 << WEIGHT_MANTISSA_BITS), exponent)
    return coded >> np.uint64(WEIGHT_BITS), weight
