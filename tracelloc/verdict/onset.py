"""Since when a leak leaks: the window's pace, followed back and down to its first block."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelloc.verdict.cohorts import F64, I64, Population
from tracelloc.verdict.rule import Curve

_CELLS: Final = 48
_PACE: Final = 0.6
"""It leaked already as long as it kept at least this part of the later pace."""
_BULK: Final = 8.0
"""A cell that holds so many times more is start-up memory."""


def find_onset(population: Population, start_s: F64, end_s: F64, rate_bytes_per_s: F64) -> F64:
    """When each site began to leak, seconds since tracing began.

    ``start_s``, ``end_s``: the window in which it was found to leak, at that rate.
    """
    cells = np.arange(_CELLS + 1) / _CELLS
    moments = end_s[:, None] * cells
    kept = Curve(population.edges_s, population.alive_bytes).between(moments)
    cell_s = np.maximum(end_s / _CELLS, 1e-9)
    expected = rate_bytes_per_s * cell_s
    at: I64 = np.clip(np.rint(start_s / cell_s).astype(np.int64), 0, _CELLS - 1)
    rows = np.arange(len(at))
    walking = np.ones(len(at), np.bool_)
    since: I64 = at.copy()
    total, cells_back = np.zeros(len(at)), np.zeros(len(at))
    for _ in range(_CELLS):
        before = np.maximum(at - 1, 0)
        cell = kept[rows, before]
        walking &= (at > 0) & (cell <= _BULK * np.maximum(expected, 1))
        total += np.where(walking, cell, 0)
        cells_back += walking
        walking &= total >= _PACE * expected * cells_back
        at = np.where(walking, before, at)
        # Only as far back as something was kept.
        since = np.where(walking & (cell > 0), at, since)
    for _ in range(_CELLS):
        empty = (kept[rows, since] <= 0) & (since < _CELLS - 1)
        since += empty
    onset: F64 = since.astype(np.float64) * cell_s
    return onset
