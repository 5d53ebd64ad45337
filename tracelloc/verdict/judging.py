"""Judges sites: all figures of many sites at once.

Sites that accumulate survivors leak or grow (``growth``), and so do sites that lose blocks
without any pointer to them (``unreachable``). Other sites are rising, start-up memory, busy,
caches, or unclear (``nonleaks``).
"""

from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np

from tracelloc.heap.cohorts import LIFETIME_EDGES_S, Population
from tracelloc.model.figures import F64, Mask, Rows
from tracelloc.model.verdicts import CODE_OF, Codes, Sites, Verdict
from tracelloc.verdict.growth import (
    CumulativeCurve,
    Growth,
    find_growth,
    find_onset,
    slice_starts,
    steady_rate,
)
from tracelloc.verdict.loss import Circumstances
from tracelloc.verdict.nonleaks import NonLeaks, find_non_leaks
from tracelloc.verdict.parameters import P
from tracelloc.verdict.survivaltail import find_tails
from tracelloc.verdict.unreachable import apply_pointer_proof, prove_unreachable


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
    mostly_kept = growth.survivors >= P.never_freed * growth.born
    replaces_old = growth.leaking & mostly_kept & frees_old
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
    """Returns onsets of growing sites, and the bytes and blocks per minute gained since then.

    ``onset_s``: known onsets of sites reported as leaking; NaN of others.
    """
    since, rate, blocks = np.zeros((3, len(growth.growing)))
    rows = np.flatnonzero(growth.growing)
    if len(rows):
        chosen, start_s, end_s = population.select(rows), growth.start_s[rows], growth.end_s[rows]
        found = np.maximum(find_onset(chosen, start_s, end_s), 0)
        # An onset is determined best when it is recent.
        known = np.minimum(onset_s[rows], found)
        since[rows] = np.where(np.isnan(onset_s[rows]), found, known)
        rate[rows] = steady_rate(chosen, since[rows], end_s)
        moments = np.stack([slice_starts(chosen.edges_s, since[rows]), end_s], axis=1)
        count = CumulativeCurve(chosen.edges_s, chosen.alive).between(moments)[:, 0]
        blocks[rows] = count / np.maximum(end_s - since[rows], 1e-3) * 60
    return since, rate, blocks


def _quantile_of_lives(population: Population) -> F64:
    """Returns the seconds that nearly all freed blocks lived at most: a lifetime class's bound."""
    freed = population.born.sum(axis=1) - population.alive.sum(axis=1)
    longer = np.cumsum(population.lifetimes[:, ::-1], axis=1)[:, ::-1]
    allowed = (1 - P.lifetime_quantile) * freed
    classes = np.count_nonzero(longer > allowed[:, None], axis=1)
    bounds = np.append(LIFETIME_EDGES_S, np.inf)
    quantile: F64 = bounds[classes]
    return quantile
