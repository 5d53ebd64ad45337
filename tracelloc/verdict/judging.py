"""Judges sites: all figures of many sites at once.

Sites that accumulate survivors leak or grow (``growth``), and so do sites that lose blocks
without any pointer to them (``unreachable``). Other sites are rising, start-up memory, busy,
caches, or unclear (``NonLeaks``).
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.heap.cohorts import LIFETIME_EDGES_S, Population
from tracelloc.model.figures import F64, Mask, Rows
from tracelloc.model.verdicts import CODE_OF, Codes, Sites, Verdict
from tracelloc.verdict.growth import (
    CumulativeCurve,
    Growth,
    Tail,
    deaths_from,
    find_growth,
    find_onset,
    find_tails,
    slice_starts,
    steady_rate,
)
from tracelloc.verdict.loss import Circumstances
from tracelloc.verdict.parameters import P
from tracelloc.verdict.unreachable import apply_pointer_proof, prove_unreachable


@dataclass(frozen=True, slots=True)
class NonLeaks:
    """The kinds of sites in which ``growth`` has found no leak, as columns with a row per site.

    The floor (the least outstanding bytes from some time on) may rise while blocks are replaced:
    old ones die, so no survival tail is flat, and yet the site grows. By Little's law (live blocks
    = births per second x mean lifetime) a rising load raises the floor of an innocent site as well;
    the test allows for that.
    """

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
    return (
        (four > P.floor_last_step * three)
        & (three > P.floor_step * two)
        & (two > P.floor_step * one)
        & (three > P.floor_rise * load * one)
        & (three - one > P.floor_least_rise_bytes)
        & (now_s >= P.floor_from_s)
        & ((life_s > P.floor_least_lifetime * now_s) | (alive <= P.floor_few_blocks))
    ), (three - one) / max(now_s / 2, 1e-3) * 60


def _containers(population: Population, alive: F64, born: F64) -> Iterator[tuple[int, float]]:
    """Yields (row, bytes per minute) of sites of few blocks that grow, as one reallocated block."""
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
    end_s = population.now_s - np.maximum(tail.age_s, P.unclear_age_s)
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


def judge_in_parts(
    count: int, population_of: Callable[[Rows], Population], circumstances: Circumstances
) -> Generator[None, None, Sites]:
    """Judges sites in parts; yields after each, so that other work can run."""
    parts = []
    for start in range(0, count, P.sites_at_a_time):
        rows = np.arange(start, min(start + P.sites_at_a_time, count))
        parts.append(judge_sites(population_of(rows), circumstances.select(rows)))
        yield None
    return Sites.concatenate(parts)


def judge_sites(population: Population, circumstances: Circumstances) -> Sites:
    """Judges all sites of a population: returns their verdicts and figures."""
    loss_share = np.maximum(circumstances.loss_floor, circumstances.loss_share)
    tail = find_tails(population)
    growth = find_growth(population, tail, loss_share, circumstances.clean_from_s)
    others = find_non_leaks(population, tail, loss_share)
    since_s, rate, blocks = _since(population, growth, circumstances.onset_s)
    watched_s = growth.end_s - np.maximum(growth.start_s, since_s)
    frees_old = growth.old_frees_per_survivor >= P.old_cache_frees
    replaces_old = growth.leaking & (growth.survivors >= P.never_freed * growth.born) & frees_old
    leaking = growth.leaking & ~replaces_old & (watched_s >= growth.watch_s)
    growing = growth.growing & ~leaking
    alive = population.alive.sum(axis=1)
    rising_only = others.rising & ~growth.growing
    if circumstances.sampled:
        # A few samples may stand for a lot by chance.
        rising_only &= alive >= P.least_survivors
    certainty = _certainty(growth, loss_share, circumstances)
    confidence = np.where(growth.growing, growth.confidence * certainty, 0.0)
    confidence[rising_only & others.container] = P.container_confidence
    sites = Sites(
        code=_codes(leaking, growing | rising_only, growth, others, population, circumstances),
        rate_bytes_per_min=np.where(rising_only, others.rise_bytes_per_min, rate),
        blocks_per_min=blocks,
        since_s=since_s,
        confidence=confidence,
        verdict_in_s=np.where(growing, np.maximum(0, growth.watch_s - watched_s), 0.0),
        never_freed=growth.never_freed & growth.growing,
        rising_only=rising_only,
        replaces_old=replaces_old,
        survivors=growth.survivors,
        born_in_window=growth.born,
        alive=alive,
        alive_bytes=population.alive_bytes.sum(axis=1),
        born=population.born.sum(axis=1),
        most_live_s=_quantile_of_lives(population),
        loss_share=loss_share,
        unreachable=population.unreachable.sum(axis=1),
        asked=population.asked,
        unreachable_bytes=population.unreachable_bytes.sum(axis=1),
    )
    if circumstances.searched:
        proof = prove_unreachable(population, loss_share, circumstances.clean_from_s)
        proof = proof.withheld() if circumstances.in_kernel else proof
        sites = apply_pointer_proof(sites, population, proof, watched_s, circumstances)
    # No more than the live bytes can have accumulated.
    most = sites.alive_bytes / np.maximum(population.now_s - sites.since_s, 1e-3) * 60
    return replace(sites, rate_bytes_per_min=np.minimum(sites.rate_bytes_per_min, most))


def _codes(  # noqa: PLR0917
    leaking: Mask,
    growing: Mask,
    growth: Growth,
    others: NonLeaks,
    population: Population,
    circumstances: Circumstances,
) -> Codes:
    """Returns verdict codes of sites, by the first condition that holds."""
    new = np.full(len(leaking), population.now_s - circumstances.clean_from_s < P.first_verdict_s)
    return np.select(
        [leaking, growing, growth.doubtful, new | others.unclear, others.start_up, others.busy],
        [
            CODE_OF[verdict]
            for verdict in (Verdict.LEAKING, Verdict.GROWING, Verdict.UNKNOWN, Verdict.DECIDING,
                            Verdict.START_UP, Verdict.BUSY)
        ],
        CODE_OF[Verdict.CACHE],
    ).astype(np.uint8)  # fmt: skip


def _certainty(growth: Growth, loss_share: F64, circumstances: Circumstances) -> F64:
    """Returns the factor by which lost events and sampling reduce the confidence."""
    survivors = np.maximum(growth.survivors, 1)
    # This share of the survivors may be blocks whose frees were lost.
    certainty: F64 = 1 - np.minimum(1, loss_share * growth.born / survivors)
    if circumstances.clean_from_s > 0 or circumstances.loss_share > 0:
        certainty *= P.lost_events_confidence
    if circumstances.sampled:
        certainty *= 1 - P.sampling_confidence_loss / np.sqrt(survivors)
    return certainty


def _since(population: Population, growth: Growth, onset_s: F64) -> tuple[F64, F64, F64]:
    """Returns onsets of growing sites, and bytes and blocks per minute since then."""
    since, rate, blocks = np.zeros((3, len(growth.growing)))
    rows = np.flatnonzero(growth.growing)
    if len(rows):
        chosen, start_s, end_s = population.select(rows), growth.start_s[rows], growth.end_s[rows]
        found = np.maximum(find_onset(chosen, start_s, end_s), 0)
        # An onset is determined best when it is recent.
        since[rows] = np.where(np.isnan(onset_s[rows]), found, np.minimum(onset_s[rows], found))
        rate[rows] = steady_rate(chosen, since[rows], end_s)
        moments = np.stack([slice_starts(chosen.edges_s, since[rows]), end_s], axis=1)
        count = CumulativeCurve(chosen.edges_s, chosen.alive).between(moments)[:, 0]
        blocks[rows] = count / np.maximum(end_s - since[rows], 1e-3) * 60
    return since, rate, blocks


def _quantile_of_lives(population: Population) -> F64:
    """Returns the seconds that nearly all freed blocks lived at most: a lifetime class's bound."""
    freed = population.born.sum(axis=1) - population.alive.sum(axis=1)
    longer = deaths_from(population)
    classes = np.count_nonzero(longer > ((1 - P.lifetime_quantile) * freed)[:, None], axis=1)
    quantile: F64 = np.append(LIFETIME_EDGES_S, np.inf)[classes]
    return quantile
