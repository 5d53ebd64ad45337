"""What a site is that does not pile up survivors: rising, start-up, busy, cache, or unclear.

The floor (the least that was outstanding from some moment on) rises where blocks are
replaced but more and more are held: old ones die, so no survival tail is flat, and yet it
grows. By Little's law (blocks held = births per second x mean lifetime) a rising load
raises the floor of an innocent site as well; that is allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import F64, Population
from tracelloc.verdict.rule import LOSS_MARGIN, Curve
from tracelloc.verdict.survival import Mask, Tail

WATCH_FIRST_S: Final = 60.0
"""Before, little can be said of what does not grow."""
_STEP: Final = 1.08
"""By which factor the floor rises at least from one quarter of the time to the next."""
_LAST_STEP: Final = 1.02
"""And in the last eighth: what has stopped rising does not rise."""
_RISE: Final = 1.25
_LEAST_RISE_BYTES: Final = 2048
_RISING_FROM_S: Final = 30.0
"""Before, nearly everything rises."""
_LIVES: Final = 0.05
"""A site with blocks that live shorter than this part of the time watched just churns."""
_FEW_BLOCKS: Final = 8
_BULK: Final = 0.8
_START_UP_S: Final = 15.0
_START_UP_PART: Final = 0.15
_START_UP_KEPT: Final = 0.7
_SHORT_LIFE_S: Final = 12.0
_MOST_FREED: Final = 0.97
_TAIL_AGE_S: Final = 10.0
_FEWEST_TO_WATCH: Final = 2
_ENOUGH_TO_JUDGE: Final = 12


@dataclass(frozen=True, slots=True)
class Others:
    """A row per site."""

    rising: Mask
    """The floor rises, beyond what the load explains."""
    rise_bytes_per_min: F64
    start_up: Mask
    busy: Mask
    unclear: Mask
    """A few old survivors, also new ones: too few to say that all is well."""


def look_at_others(population: Population, tail: Tail, loss_share: F64) -> Others:
    """Looks at every site, whether it leaks or not."""
    now_s = population.now_s
    alive = population.alive.sum(axis=1)
    born = population.born.sum(axis=1)
    life_s = alive / np.maximum(born / now_s, 1e-9)
    rising, rate = _rising(population, life_s, alive)
    early_s = max(_START_UP_S, _START_UP_PART * now_s)
    bytes_until = Curve(population.edges_s, population.alive_bytes)
    moments = np.tile([0.0, min(early_s, now_s)], (len(alive), 1))
    early = bytes_until.between(moments)[:, 0]
    in_bulk = early > _BULK * np.maximum(population.alive_bytes.sum(axis=1), 1)
    freed = 1 - alive / np.maximum(born, 1)
    kept = np.where(tail.found, tail.kept, freed < 1 - _START_UP_KEPT)
    return Others(
        rising=rising,
        rise_bytes_per_min=rate,
        start_up=in_bulk & (kept >= _START_UP_KEPT) & (freed < 0.5),
        busy=(life_s < _SHORT_LIFE_S) | (freed > _MOST_FREED),
        unclear=_unclear(population, tail, born, loss_share),
    )


def _rising(population: Population, life_s: F64, alive: F64) -> tuple[Mask, F64]:
    """Whether the floor rises over the quarters of the time watched, and by how much a minute."""
    now_s = population.now_s
    lowest_from = np.minimum.accumulate(population.floor_bytes[:, ::-1], axis=1)[:, ::-1]
    moments = now_s * np.array([1 / 4, 1 / 2, 3 / 4, 7 / 8])
    at = np.searchsorted(population.edges_s, moments, side="right") - 1
    one, two, three, four = lowest_from[:, at].T
    births = Curve(population.edges_s, population.born).at(
        np.tile(now_s * np.array([1, 2, 3, 4]) / 4, (len(alive), 1))
    )
    second, fourth = births[:, 1] - births[:, 0], births[:, 3] - births[:, 2]
    load = np.maximum(1, fourth / np.maximum(second, 1))
    rising: Mask = (
        (four > _LAST_STEP * three)
        & (three > _STEP * two)
        & (two > _STEP * one)
        & (three > _RISE * load * one)
        & (three - one > _LEAST_RISE_BYTES)
        & (now_s >= _RISING_FROM_S)
        & ((life_s > _LIVES * now_s) | (alive <= _FEW_BLOCKS))
    )
    return rising, (three - one) / max(now_s / 2, 1e-3) * 60


def _unclear(population: Population, tail: Tail, born: F64, loss_share: F64) -> Mask:
    now_s = population.now_s
    end_s = now_s - np.maximum(tail.age_s, _TAIL_AGE_S)
    moments = np.stack([np.zeros(len(end_s)), end_s / 2, end_s], axis=1)
    older, newer = Curve(population.edges_s, population.alive).between(moments).T
    old = older + newer
    unclear: Mask = (
        (old >= _FEWEST_TO_WATCH)
        & (old < _ENOUGH_TO_JUDGE)
        & (newer >= 0.5)
        & (old > LOSS_MARGIN * loss_share * born)
    )
    return unclear
