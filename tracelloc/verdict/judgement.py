"""What kind of memory a site's blocks are, judged by its figures alone, and how sure one can be.

A *site* is a call stack, or several that share frames and are looked at as one. Sites that
pile up survivors leak or grow (``growth``). Others are rising, start-up memory, busy, caches,
or unclear: the floor (the least that was outstanding from some moment on) rises where blocks
are replaced but more and more are held: old ones die, so no survival tail is flat, and yet it
grows. By Little's law (blocks held = births per second x mean lifetime) a rising load raises
the floor of an innocent site as well; that is allowed for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.cohorts import F64, LIFETIME_EDGES_S, Population
from tracelloc.verdict.growth import (
    CumulativeCurve,
    Growth,
    Rows,
    find_growth,
    find_onset,
    steady_rate,
)
from tracelloc.verdict.parameters import P
from tracelloc.verdict.survivaltail import Mask, Tail, find_tails


class Verdict(Enum):
    """What kind of memory a site's blocks are. The values are what users read."""

    LEAKING = "leaking"
    """Blocks of nearly every generation survive, have stopped dying, at a pace that does
    not slow down, for long enough."""
    GROWING = "growing"
    """Growing, but it is too early or there is too little to call it a leak."""
    CACHE_OR_POOL = "cache-or-pool"
    """Blocks are kept and replaced; their minimum has stopped rising."""
    BUSY = "busy"
    """Blocks are short-lived; none accumulate."""
    START_UP = "start-up"
    """Nearly all of it was allocated at the start and stays."""
    DECIDING = "deciding"
    """Too little has been seen to say anything."""
    UNKNOWN = "unknown"
    """Too much is missing to say anything: lost events, or where the stacks go on."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one site at one moment, and its figures."""

    verdict: Verdict
    rate_bytes_per_min: float
    """At which bytes pile up that are not freed; 0 unless leaking or growing."""
    since_ns: int
    """Since when, CLOCK_MONOTONIC; for other verdicts, since tracing began."""
    confidence: float
    """Chance that it really is a leak, 0 to 1; 0 unless leaking or growing."""
    evidence: str
    """One plain sentence, without the verdict's name."""
    verdict_in_s: float
    """Seconds until it can be called leaking; 0 unless only time is missing."""
    never_freed: bool
    """Nothing allocated here has been freed: a container that only grows would look the same."""
    survivors: int
    """Blocks (sampled ones, where blocks are sampled) that the rate is made of."""
    retracted: int
    """How often the verdict leaking was retracted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A stack's part in a suspect."""

    stack: int
    """Index of ``stacks.Stacks``."""
    rate_bytes_per_min: float
    share: float
    """Share of the suspect's rate, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A site that is leaking or growing: one stack, or several that share a frame."""

    judgement: Judgement
    members: tuple[Member, ...]
    """The largest share first; at least one."""
    frame: int | None
    """Return address in a frame that all members share; None for a single stack. Where a leak
    is split over its callers, the outermost one from the allocation on; where stacks leak
    together, their innermost common caller."""

    @property
    def stack(self) -> int:
        """The stack with the largest share."""
        return self.members[0].stack


@dataclass(frozen=True, slots=True)
class NonLeaks:
    """Sites that do not leak by the rule of windows: a row per site."""

    rising: Mask
    """The floor rises, beyond what the load explains."""
    rise_bytes_per_min: F64
    start_up: Mask
    busy: Mask
    unclear: Mask
    """A few old survivors, also new ones: too few to say that all is well."""


def find_non_leaks(population: Population, tail: Tail, loss_share: F64) -> NonLeaks:
    """Looks at every site, whether it leaks or not."""
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
        busy=(life_s < P.busy_lifetime_s) | (freed > P.busy_freed),
        unclear=_unclear(population, tail, born, loss_share),
    )


def _rising(population: Population, life_s: F64, alive: F64) -> tuple[Mask, F64]:
    """Whether the floor rises over the quarters of the time watched, and by how much a minute."""
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


Codes = npt.NDArray[np.uint8]

VERDICTS: Final = tuple(Verdict)
"""The verdict of each code."""
CODE_OF: Final = {verdict: np.uint8(code) for code, verdict in enumerate(VERDICTS)}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Circumstances of a look: what is known of losses and sampling."""

    loss_share: float
    """Share of frees that are known to be lost."""
    loss_floor: F64
    """Per site, the share of blocks that other sites seem to lose (``loss``)."""
    clean_from_s: float
    """Events are complete from here on, seconds since tracing began."""
    onset_s: F64
    """Per site that was called leaking, since when it leaks, seconds since tracing began; NaN of
    others."""
    sampled: bool = False
    """Blocks are samples: counts are of samples, bytes are scaled."""

    def select(self, rows: Rows) -> Circumstances:
        """The circumstances of some sites."""
        return replace(self, loss_floor=self.loss_floor[rows], onset_s=self.onset_s[rows])


@dataclass(frozen=True, slots=True)
class Sites:
    """Judged sites: a column per figure, a row per site."""

    code: Codes
    """Index of ``VERDICTS``. What may be called leaking is: the judge waits a little."""
    rate_bytes_per_min: F64
    blocks_per_min: F64
    """Rate in blocks, of what may be a leak; 0 of others."""
    since_s: F64
    confidence: F64
    verdict_in_s: F64
    never_freed: Mask
    rising_only: Mask
    """Growing by its floor: old blocks still get freed."""
    replaces_old: Mask
    """Would be leaking, but may be a cache that was full at the start."""
    survivors: F64
    born_in_window: F64
    alive: F64
    alive_bytes: F64
    born: F64
    most_live_s: F64
    """Nearly all blocks that died had lived no longer than this."""
    loss_share: F64

    def __len__(self) -> int:
        return len(self.code)

    def select(self, rows: Rows) -> Sites:
        """Some of the sites."""
        return Sites(*(getattr(self, field.name)[rows] for field in fields(self)))

    def withheld(self, rows: Mask) -> Sites:
        """Without a verdict on some of them: stacks that may stand for many call sites."""
        unknown = np.uint8(CODE_OF[Verdict.UNKNOWN])
        return replace(
            self,
            code=np.where(rows, unknown, self.code),
            rate_bytes_per_min=np.where(rows, 0.0, self.rate_bytes_per_min),
            blocks_per_min=np.where(rows, 0.0, self.blocks_per_min),
            confidence=np.where(rows, 0.0, self.confidence),
            # What is lost is not the reason.
            loss_share=np.where(rows, 0.0, self.loss_share),
        )

    @classmethod
    def concatenate(cls, parts: list[Sites]) -> Sites:
        """All sites of some parts, at least one."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )


def judge_in_parts(
    count: int, population_of: Callable[[Rows], Population], circumstances: Circumstances
) -> Generator[None, None, Sites]:
    """Judges some sites, lets others have a turn, and so on."""
    parts = []
    for start in range(0, count, P.sites_at_a_time):
        rows = np.arange(start, min(start + P.sites_at_a_time, count))
        parts.append(judge_sites(population_of(rows), circumstances.select(rows)))
        yield None
    return Sites.concatenate(parts)


def judge_sites(population: Population, circumstances: Circumstances) -> Sites:
    """Judges all sites of a population."""
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
        # Few samples may stand for a lot, and that may be chance.
        rising_only &= alive >= P.least_survivors
    certainty = _certainty(growth, loss_share, circumstances)
    return Sites(
        code=_codes(leaking, growing | rising_only, growth, others, population, circumstances),
        rate_bytes_per_min=np.where(rising_only, others.rise_bytes_per_min, rate),
        blocks_per_min=blocks,
        since_s=since_s,
        confidence=np.where(growth.growing, growth.confidence * certainty, 0.0),
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
    )


def _codes(  # noqa: PLR0917
    leaking: Mask,
    growing: Mask,
    growth: Growth,
    others: NonLeaks,
    population: Population,
    circumstances: Circumstances,
) -> Codes:
    """Verdict codes: the first condition that holds."""
    new = np.full(len(leaking), population.now_s - circumstances.clean_from_s < P.first_verdict_s)
    return np.select(
        [leaking, growing, growth.doubtful, new | others.unclear, others.start_up, others.busy],
        [
            CODE_OF[verdict]
            for verdict in (Verdict.LEAKING, Verdict.GROWING, Verdict.UNKNOWN, Verdict.DECIDING,
                            Verdict.START_UP, Verdict.BUSY)
        ],
        CODE_OF[Verdict.CACHE_OR_POOL],
    ).astype(np.uint8)  # fmt: skip


def _certainty(growth: Growth, loss_share: F64, circumstances: Circumstances) -> F64:
    """Factor of the confidence, for lost events and sampled blocks."""
    survivors = np.maximum(growth.survivors, 1)
    # So many of the survivors may be blocks whose frees were lost.
    certainty: F64 = 1 - np.minimum(1, loss_share * growth.born / survivors)
    if circumstances.clean_from_s > 0 or circumstances.loss_share > 0:
        certainty *= P.lost_events_confidence
    if circumstances.sampled:
        certainty *= 1 - P.sampling_confidence_loss / np.sqrt(survivors)
    return certainty


def _since(population: Population, growth: Growth, onset_s: F64) -> tuple[F64, F64, F64]:
    """Since when sites grow, and at how many bytes and blocks a minute since then.

    ``onset_s``: since when, of those that were called leaking; NaN of others.
    """
    since, rate, blocks = np.zeros((3, len(growth.growing)))
    rows = np.flatnonzero(growth.growing)
    if len(rows):
        chosen, start_s, end_s = population.select(rows), growth.start_s[rows], growth.end_s[rows]
        found = np.maximum(find_onset(chosen, start_s, end_s), 0)
        # An onset is known best when it was not long ago.
        known = np.minimum(onset_s[rows], found)
        since[rows] = np.where(np.isnan(onset_s[rows]), found, known)
        rate[rows] = steady_rate(chosen, since[rows], end_s)
        moments = np.stack([since[rows], end_s], axis=1)
        count = CumulativeCurve(chosen.edges_s, chosen.alive).between(moments)[:, 0]
        blocks[rows] = count / np.maximum(end_s - since[rows], 1e-3) * 60
    return since, rate, blocks


def _quantile_of_lives(population: Population) -> F64:
    """The upper bound of the class up to which nearly all deaths are."""
    freed = population.born.sum(axis=1) - population.alive.sum(axis=1)
    longer = np.cumsum(population.lifetimes[:, ::-1], axis=1)[:, ::-1]
    allowed = (1 - P.lifetime_quantile) * freed
    classes = np.count_nonzero(longer > allowed[:, None], axis=1)
    bounds = np.append(LIFETIME_EDGES_S, np.inf)
    quantile: F64 = bounds[classes]
    return quantile
