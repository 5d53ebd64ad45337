"""Since when a leak leaks: the window's pace, followed back, then cut where it begins."""

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
_SLOWER: Final = 0.4
"""What comes before the onset has less than this part of the pace after it."""
_DEVIATION: Final = 1.3
"""Standard errors by which survivors lag behind a steady pace, for there to be an onset."""


def find_onset(population: Population, start_s: F64, end_s: F64) -> F64:
    """When each site began to leak, seconds since tracing began.

    ``start_s``, ``end_s``: the window in which it was found to leak.
    """
    cells = np.arange(_CELLS + 1) / _CELLS
    until = Curve(population.edges_s, population.alive).at(end_s[:, None] * cells)
    first = np.rint(start_s / np.maximum(end_s, 1e-9) * _CELLS).astype(np.int64)
    first = _walk_back(np.diff(until, axis=1), np.clip(first, 0, _CELLS - 1))
    onset: F64 = _cut(until, first) / _CELLS * end_s
    return onset


def _walk_back(kept: F64, first: I64) -> I64:
    """The cell from which on the pace of the later cells was nearly kept."""
    rows = np.arange(len(first))
    ahead = np.cumsum(kept[:, ::-1], axis=1)[:, ::-1][rows, first]
    expected = ahead / (_CELLS - first)
    at, since = first.copy(), first.copy()
    walking = np.ones(len(at), np.bool_)
    total, walked = np.zeros(len(at)), np.zeros(len(at))
    for _ in range(_CELLS):
        before = np.maximum(at - 1, 0)
        cell = kept[rows, before]
        walking &= (at > 0) & (cell <= _BULK * np.maximum(expected, 1))
        total += np.where(walking, cell, 0)
        walked += walking
        walking &= total >= _PACE * expected * walked
        at = np.where(walking, before, at)
        # Only as far back as something was kept.
        since = np.where(walking & (cell > 0), at, since)
    return since


def _cut(until: F64, first: I64) -> I64:
    """Moves the onset to where survivors lag most behind a steady pace, if they do."""
    rows = np.arange(len(first))
    cells = np.arange(_CELLS + 1)
    base, total = until[rows, first], until[:, -1]
    count = np.maximum(total - base, 1e-9)
    inside = cells >= first[:, None]
    steady = count[:, None] * (cells - first[:, None]) / (_CELLS - first)[:, None]
    lag = np.where(inside, steady - (until - base[:, None]), 0)
    at = lag.argmax(axis=1)
    before = (until[rows, at] - base) / np.maximum(at - first, 1)
    after = (total - until[rows, at]) / np.maximum(_CELLS - at, 1)
    late = (lag[rows, at] > _DEVIATION * np.sqrt(count)) & (before < _SLOWER * after)
    cut: I64 = np.where(late, at, first)
    # Nothing was kept in the cells before the first block.
    kept = until[rows[:, None], np.minimum(cells + 1, _CELLS)] > until
    waits = (cells >= cut[:, None]) & kept
    found: I64 = np.where(waits.any(axis=1), waits.argmax(axis=1), cut)
    return found
