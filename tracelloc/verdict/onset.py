"""Since when a leak leaks: the window's pace, followed back, then cut where it begins."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelloc.heap.cohorts import F64, I64, Population
from tracelloc.verdict.rule import Curve

_PACE: Final = 0.6
"""It leaked already as long as it kept at least this part of the later pace."""
_BULK: Final = 8.0
"""A slice that holds so many times more is start-up memory."""
_SLOWER: Final = 0.4
"""What comes before the onset has less than this part of the pace after it."""
_DEVIATION: Final = 1.3
"""Standard errors by which survivors lag behind a steady pace, for there to be an onset."""


def find_onset(population: Population, start_s: F64, end_s: F64) -> F64:
    """When each site began to leak, seconds since tracing began, to a slice's width.

    ``start_s``, ``end_s``: the window in which it was found to leak.
    """
    edges = np.minimum(population.edges_s, end_s[:, None])
    until = Curve(population.edges_s, population.alive).at(edges)
    first = np.searchsorted(population.edges_s, start_s + 1e-9, side="right") - 1
    first = _walk_back(until, edges, np.clip(first, 0, edges.shape[1] - 2))
    onset: F64 = edges[np.arange(len(end_s)), _cut(until, edges, first)]
    return onset


def _walk_back(until: F64, edges: F64, first: I64) -> I64:
    """The slice from which on the pace of the later ones was nearly kept."""
    rows = np.arange(len(first))
    kept, lengths = np.diff(until, axis=1), np.diff(edges, axis=1)
    lasted = np.maximum(edges[:, -1] - edges[rows, first], 1e-9)
    pace = (until[:, -1] - until[rows, first]) / lasted
    at, since = first.copy(), first.copy()
    walking = np.ones(len(at), np.bool_)
    total, walked = np.zeros(len(at)), np.zeros(len(at))
    for _ in range(kept.shape[1]):
        before = np.maximum(at - 1, 0)
        here, length = kept[rows, before], lengths[rows, before]
        walking &= (at > 0) & (here <= _BULK * np.maximum(pace * length, 1))
        total += np.where(walking, here, 0)
        walked += np.where(walking, length, 0)
        walking &= total >= _PACE * pace * walked
        at = np.where(walking, before, at)
        # Only as far back as something was kept.
        since = np.where(walking & (here > 0), at, since)
    return since


def _cut(until: F64, edges: F64, first: I64) -> I64:
    """Moves the onset to where survivors lag most behind a steady pace, if they do."""
    rows = np.arange(len(first))
    slices = np.arange(edges.shape[1])
    base, begin = until[rows, first], edges[rows, first]
    count = np.maximum(until[:, -1] - base, 1e-9)
    lasted = np.maximum(edges[:, -1] - begin, 1e-9)
    steady = (count / lasted)[:, None] * (edges - begin[:, None])
    lag = np.where(slices >= first[:, None], steady - (until - base[:, None]), 0)
    at = lag.argmax(axis=1)
    moment = edges[rows, at]
    before = (until[rows, at] - base) / np.maximum(moment - begin, 1e-9)
    after = (until[:, -1] - until[rows, at]) / np.maximum(edges[:, -1] - moment, 1e-9)
    late = (lag[rows, at] > _DEVIATION * np.sqrt(count)) & (before < _SLOWER * after)
    cut: I64 = np.where(late, at, first)
    # Nothing was kept in the slices before the first block.
    kept = np.append(np.diff(until, axis=1) > 0, np.zeros((len(rows), 1), np.bool_), axis=1)
    waits = (slices >= cut[:, None]) & kept
    found: I64 = np.where(waits.any(axis=1), waits.argmax(axis=1), cut)
    return found
