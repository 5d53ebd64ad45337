"""Classifies sites that do not leak by the test of windows.

The floor (the least outstanding bytes from some time on) may rise while blocks are replaced:
old ones die, so no survival tail is flat, and yet the site grows. By Little's law (live blocks =
births per second x mean lifetime) a rising load raises the floor of an innocent site as well; the
test allows for that.
"""

from collections.abc import Iterator

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.heap.cohorts import Population
from tracelloc.model.figures import F64, Mask
from tracelloc.verdict.growth import CumulativeCurve
from tracelloc.verdict.parameters import P
from tracelloc.verdict.survivaltail import Tail


@dataclass(frozen=True, slots=True)
class NonLeaks:
    """The kinds of sites in which ``growth`` has found no leak, as columns with a row per site."""

    rising: Mask  # The floor rises more than the load explains
    container: Mask  # Rising: one container, of few blocks, that keeps growing
    rise_bytes_per_min: F64  # Rate at which the floor rises; 0 of other sites
    start_up: Mask
    busy: Mask
    unclear: Mask  # A few old survivors, also new ones: too few for a reassuring verdict


def find_non_leaks(population: Population, tail: Tail, loss_share: F64) -> NonLeaks:
    """Classifies every site as if it did not leak; ``loss_share``: possible lost frees."""
    now_s = population.now_s
    alive = population.alive.sum(axis=1)
    born = population.born.sum(axis=1)
    life_s = alive / np.maximum(born / now_s, 1e-9)
    rising, rate = _rising(population, life_s, alive)
    container = np.zeros(len(alive), np.bool_)
    for row, its_rate in _containers(population, alive, born):
        container[row] = rising[row] = True
        rate[row] = its_rate
    early_s = max(P.start_up_s, P.start_up_part * now_s)
    bytes_until = CumulativeCurve(population.edges_s, population.alive_bytes)
    moments = np.tile([0.0, min(early_s, now_s)], (len(alive), 1))
    early = bytes_until.between(moments)[:, 0]
    in_bulk = early > P.start_up_bulk * np.maximum(population.alive_bytes.sum(axis=1), 1)
    freed = 1 - alive / np.maximum(born, 1)
    kept = np.where(tail.found, tail.kept, freed < 1 - P.start_up_kept)
    return NonLeaks(
        rising=rising,
        container=container,
        rise_bytes_per_min=rate,
        start_up=in_bulk & (kept >= P.start_up_kept) & (freed < 0.5),
        busy=_busy(population, life_s, freed),
        unclear=_unclear(population, tail, born, loss_share),
    )


def _busy(population: Population, life_s: F64, freed: F64) -> Mask:
    """Whether a site's blocks are short-lived, and not those that a full cache replaces."""
    last_half = np.searchsorted(population.edges_s, population.now_s / 2, side="right") - 1
    floors = population.floor_bytes[:, last_half:]
    most = np.maximum(floors.max(axis=1), population.alive_bytes.sum(axis=1))
    is_full = floors.min(axis=1) > P.full_floor * most
    brief: Mask = (life_s < P.busy_lifetime_s) | (freed > P.busy_freed)
    busy: Mask = brief & ~(is_full & (life_s > P.full_lifetime_s))
    return busy


def _rising(population: Population, life_s: F64, alive: F64) -> tuple[Mask, F64]:
    """Whether a site's floor rises over the quarters of the time watched, and bytes per minute."""
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


def _containers(population: Population, alive: F64, born: F64) -> Iterator[tuple[int, float]]:
    """Yields sites of few blocks that keep growing, such as one block that is reallocated.

    Yields the row of each, and the bytes per minute by which its contents grow.
    """
    live_bytes = population.alive_bytes.sum(axis=1)
    is_one = (alive <= P.floor_few_blocks) & (born - alive >= 2)
    is_one &= live_bytes >= P.container_least_rise_bytes
    for row in np.flatnonzero(is_one).tolist():
        first = int(np.argmax(population.born[row] > 0)) + 1
        floor = population.floor_bytes[row, first + 1 :]
        # A container never becomes smaller; what is filled and freed again and again does.
        if np.all(floor[1:] >= P.container_least_kept * np.maximum.accumulate(floor[:-1])):
            rate = _steady_rise(population.edges_s[first + 1 : -1], floor)
            if rate > 0:
                yield row, rate


def _steady_rise(times_s: F64, floor: F64) -> float:
    """Returns the bytes per minute of a floor whose steps follow from steady growth; 0 otherwise.

    A container that doubles waits twice as long each time, and its contents are as large as its
    old capacity when it does; one that is reallocated for each addition rises evenly.
    """
    if len(floor) < P.container_least_slices:
        return 0.0
    rise, watched_s = floor[-1] - floor[0], times_s[-1] - times_s[0]
    if watched_s < P.container_watch_s or rise < P.container_least_rise_bytes:
        return 0.0
    quarters = np.interp(times_s[0] + watched_s * np.arange(5) / 4, times_s, floor)
    if np.diff(quarters).min() >= P.container_even_rise * rise / 4:
        return float(rise / watched_s * 60)
    steps = np.flatnonzero(floor[1:] >= np.maximum(P.container_step * floor[:-1], 1))
    if len(steps) < 2:
        return 0.0
    before, last = steps[-2:]
    pause_s = times_s[last] - times_s[before]
    if times_s[-1] - times_s[last + 1] > P.container_pause * pause_s:
        return 0.0
    return float((floor[last] - floor[before]) / pause_s * 60)


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
