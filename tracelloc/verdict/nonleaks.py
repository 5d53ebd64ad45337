"""Classifies sites that do not leak by the test of windows.

The floor (the least outstanding bytes from some time on) may rise while blocks are replaced:
old ones die, so no survival tail is flat, and yet the site grows. By Little's law (live blocks =
births per second x mean lifetime) a rising load raises the floor of an innocent site as well; the
test allows for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelloc.heap.cohorts import Population
from tracelloc.model.figures import F64, Mask
from tracelloc.verdict.growth import CumulativeCurve
from tracelloc.verdict.parameters import P
from tracelloc.verdict.survivaltail import Tail


@dataclass(frozen=True, slots=True)
class NonLeaks:
    """Kinds of sites that do not leak by the test of windows: a row per site."""

    rising: Mask  # The floor rises more than the load explains
    rise_bytes_per_min: F64
    start_up: Mask
    busy: Mask
    unclear: Mask  # A few old survivors, also new ones: too few for a reassuring verdict


def find_non_leaks(population: Population, tail: Tail, loss_share: F64) -> NonLeaks:
    """Classifies every site, whether it leaks or not."""
    now_s = population.now_s
    alive = population.alive.sum(axis=1)
    born = population.born.sum(axis=1)
    life_s = alive / np.maximum(born / now_s, 1e-9)
    rising, rate = _rising(population, life_s, alive)
    early_s = max(P.start_up_s, P.start_up_part * now_s)
    bytes_until = CumulativeCurve(population.edges_s, population.alive_bytes)
    moments = np.tile([0.0, min(early_s, now_s)], (len(alive), 1))
    early = bytes_until.between(moments)[:, 0]
    in_bulk = early > P.start_up_bulk * np.maximum(population.alive_bytes.sum(axis=1), 1)
    freed = 1 - alive / np.maximum(born, 1)
    kept = np.where(tail.found, tail.kept, freed < 1 - P.start_up_kept)
    return NonLeaks(
        rising=rising,
        rise_bytes_per_min=rate,
        start_up=in_bulk & (kept >= P.start_up_kept) & (freed < 0.5),
        busy=_busy(population, life_s, freed),
        unclear=_unclear(population, tail, born, loss_share),
    )


def _busy(population: Population, life_s: F64, freed: F64) -> Mask:
    """Whether blocks are short-lived, other than those that a full cache replaces."""
    last_half = np.searchsorted(population.edges_s, population.now_s / 2, side="right") - 1
    floors = population.floor_bytes[:, last_half:]
    most = np.maximum(floors.max(axis=1), population.alive_bytes.sum(axis=1))
    is_full = floors.min(axis=1) > P.full_floor * most
    brief: Mask = (life_s < P.busy_lifetime_s) | (freed > P.busy_freed)
    busy: Mask = brief & ~(is_full & (life_s > P.full_lifetime_s))
    return busy


def _rising(population: Population, life_s: F64, alive: F64) -> tuple[Mask, F64]:
    """Whether the floor rises over the quarters of the time watched, and its rise per minute."""
    now_s = population.now_s
    lowest_from = np.minimum.accumulate(population.floor_bytes[:, ::-1], axis=1)[:, ::-1]
    moments = now_s * np.array([1 / 4, 1 / 2, 3 / 4, 7 / 8])
    at = np.searchsorted(population.edges_s, moments, side="right") - 1
    one, two, three, four = lowest_from[:, at].T
    births = CumulativeCurve(population.edges_s, population.born).at(
        np.tile(now_s * np.array([1, 2, 3, 4]) / 4, (len(alive), 1))
    )
    second, fourth = births[:, 1] - births[:, 0], births[:, 3] - births[:, 2]
    load = np.maximum(1, fourth / np.maximum(second, 1))
    rising: Mask = (
        (four > P.floor_last_step * three)
        & (three > P.floor_step * two)
        & (two > P.floor_step * one)
        & (three > P.floor_rise * load * one)
        & (three - one > P.floor_least_rise_bytes)
        & (now_s >= P.floor_from_s)
        & ((life_s > P.floor_least_lifetime * now_s) | (alive <= P.floor_few_blocks))
    )
    return rising, (three - one) / max(now_s / 2, 1e-3) * 60


def _unclear(population: Population, tail: Tail, born: F64, loss_share: F64) -> Mask:
    now_s = population.now_s
    end_s = now_s - np.maximum(tail.age_s, P.unclear_age_s)
    moments = np.stack([np.zeros(len(end_s)), end_s / 2, end_s], axis=1)
    older, newer = CumulativeCurve(population.edges_s, population.alive).between(moments).T
    old = older + newer
    unclear: Mask = (
        (old >= P.unclear_least_old)
        & (old < P.unclear_below_old)
        & (newer >= 0.5)
        & (old > P.loss_margin * loss_share * born)
    )
    return unclear
