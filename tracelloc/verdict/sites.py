"""Judges sites by their figures alone: no memory of earlier verdicts in here."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.cohorts import F64, LIFETIME_EDGES_S, Population
from tracelloc.verdict.judgement import Verdict
from tracelloc.verdict.others import WATCH_FIRST_S, Others, look_at_others
from tracelloc.verdict.rule import (
    FEWEST_SURVIVORS,
    NEVER_FREED,
    Curve,
    Growth,
    Rows,
    find_growth,
    find_onset,
)
from tracelloc.verdict.survival import Mask, find_tails

Codes = npt.NDArray[np.uint8]

VERDICTS: Final = tuple(Verdict)
"""The verdict of each code."""
CODE_OF: Final = {verdict: np.uint8(code) for code, verdict in enumerate(VERDICTS)}
PART: Final = 500
"""Sites judged at a time: some 10 ms."""
_STRANGERS_SHARE: Final = 0.5
"""So many frees of old blocks for each survivor, and a site may be a cache that was full
when tracing began: what it replaces was never seen to be made."""
_INCOMPLETE: Final = 0.7
"""Confidence is less once events were lost."""
_SAMPLING_ERROR: Final = 0.5
"""And where n samples stand for all blocks, by so many times their relative error, 1 / sqrt(n)."""
_QUANTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else there is to know at this moment."""

    loss_share: float
    """Share of frees that are known to be lost."""
    loss_floor: F64
    """Per site, the share of blocks that other sites seem to lose (``loss``)."""
    clean_from_s: float
    """Events are complete from here on, seconds since tracing began."""
    sampled: bool = False
    """Blocks are samples: counts are of samples, bytes are scaled."""

    def select(self, rows: Rows) -> Circumstances:
        """For some of the sites."""
        return replace(self, loss_floor=self.loss_floor[rows])


@dataclass(frozen=True, slots=True)
class Sites:
    """What is known of each site: a column per figure, a row per site."""

    code: Codes
    """Index of ``VERDICTS``. What may be called leaking is: the judge waits a little."""
    rate_bytes_per_min: F64
    since_s: F64
    confidence: F64
    watch_more_s: F64
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
    for start in range(0, count, PART):
        rows = np.arange(start, min(start + PART, count))
        parts.append(judge_sites(population_of(rows), circumstances.select(rows)))
        yield None
    return Sites.concatenate(parts)


def judge_sites(population: Population, circumstances: Circumstances) -> Sites:
    """Judges all sites of a population."""
    loss_share = np.maximum(circumstances.loss_floor, circumstances.loss_share)
    tail = find_tails(population)
    growth = find_growth(population, tail, loss_share, circumstances.clean_from_s)
    others = look_at_others(population, tail, loss_share)
    since_s, rate = _since(population, growth)
    watched_s = growth.end_s - np.maximum(growth.start_s, since_s)
    never_freed = growth.survivors >= NEVER_FREED * growth.born
    replaces_old = growth.leaking & never_freed & (growth.strangers_share >= _STRANGERS_SHARE)
    leaking = growth.leaking & ~replaces_old & (watched_s >= growth.watch_s)
    growing = growth.growing & ~leaking
    alive = population.alive.sum(axis=1)
    rising_only = others.rising & ~growth.growing
    if circumstances.sampled:
        # Few samples may stand for a lot, and that may be chance.
        rising_only &= alive >= FEWEST_SURVIVORS
    certainty = _certainty(growth, loss_share, circumstances)
    return Sites(
        code=_codes(leaking, growing | rising_only, growth, others, population, circumstances),
        rate_bytes_per_min=np.where(rising_only, others.rise_bytes_per_min, rate),
        since_s=since_s,
        confidence=np.where(growth.growing, growth.confidence * certainty, 0.0),
        watch_more_s=np.where(growing, np.maximum(0, growth.watch_s - watched_s), 0.0),
        never_freed=never_freed & growth.growing,
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
    others: Others,
    population: Population,
    circumstances: Circumstances,
) -> Codes:
    """The first that holds."""
    new = np.full(len(leaking), population.now_s - circumstances.clean_from_s < WATCH_FIRST_S)
    return np.select(
        [leaking, growing, growth.doubtful, new | others.unclear, others.start_up, others.busy],
        [
            CODE_OF[verdict]
            for verdict in (Verdict.LEAKING, Verdict.GROWING, Verdict.UNKNOWN, Verdict.WATCHING,
                            Verdict.START_UP, Verdict.BUSY)
        ],
        CODE_OF[Verdict.CACHE_OR_POOL],
    ).astype(np.uint8)  # fmt: skip


def _certainty(growth: Growth, loss_share: F64, circumstances: Circumstances) -> F64:
    """What is left of the confidence: not all events, or not all blocks, may be known."""
    survivors = np.maximum(growth.survivors, 1)
    # So many of the survivors may be blocks whose frees were lost.
    certainty: F64 = 1 - np.minimum(1, loss_share * growth.born / survivors)
    if circumstances.clean_from_s > 0 or circumstances.loss_share > 0:
        certainty *= _INCOMPLETE
    if circumstances.sampled:
        certainty *= 1 - _SAMPLING_ERROR / np.sqrt(survivors)
    return certainty


def _since(population: Population, growth: Growth) -> tuple[F64, F64]:
    """Since when sites grow, and at how many bytes a minute since then."""
    since, rate = np.zeros(len(growth.growing)), np.zeros(len(growth.growing))
    rows = np.flatnonzero(growth.growing)
    if len(rows):
        chosen, end_s = population.select(rows), growth.end_s[rows]
        since[rows] = find_onset(chosen, growth.start_s[rows], end_s)
        from_s = np.maximum(since[rows], growth.start_s[rows])
        kept = Curve(chosen.edges_s, chosen.alive_bytes).between(np.stack([from_s, end_s], axis=1))
        rate[rows] = kept[:, 0] / np.maximum(end_s - from_s, 1e-3) * 60
    return since, rate


def _quantile_of_lives(population: Population) -> F64:
    """The upper bound of the class up to which nearly all deaths are."""
    freed = population.born.sum(axis=1) - population.alive.sum(axis=1)
    longer = np.cumsum(population.lifetimes[:, ::-1], axis=1)[:, ::-1]
    allowed = (1 - _QUANTILE) * freed
    classes = np.count_nonzero(longer > allowed[:, None], axis=1)
    bounds = np.append(LIFETIME_EDGES_S, np.inf)
    quantile: F64 = bounds[classes]
    return quantile
