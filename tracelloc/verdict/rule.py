"""The test for a leak: windows of time in which survivors pile up at a steady pace.

Each window ends where the survival tail begins (``survival``): what was born later is too
young to tell. It is cut into six chunks of equal length, and its survivors (blocks born in
a chunk that are alive) have to come from nearly every chunk, at a pace that does not slow
down, corrected by how much the process did at the time. Several windows are tried, the
widest first: a leak may start late, and start-up memory must not hide one.

Counting in how many generations survivors are found is the idea of GenCount (Sor et al.);
the survival tail, the pace and the time watched tell caches that fill from leaks.
All times in seconds since tracing began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.verdict.cohorts import F64, Population
from tracelloc.verdict.survival import Mask, Tail

CHUNKS: Final = 6
_FEWEST_CHUNKS: Final = 5
_FRACTIONS: Final = (0.0, 1 / 3, 1 / 2, 2 / 3, 3 / 4)
"""Windows that begin at these parts of the time watched."""
_LENGTHS_S: Final = (320.0, 200.0, 130.0, 60.0, 30.0)
"""And such that are so long: leaks that begin late in a long session."""
FEWEST_SURVIVORS: Final = 6
_SLACK: Final = 1.3
"""Standard errors by which a pace may fall short."""
_PACE: Final = 0.7
"""The second half keeps at least this part of the first half's survivors."""
_LARGEST_CORRECTION: Final = 3.0
"""By how much a falling load may excuse fewer survivors."""
_GROWING_BLOCKS: Final = 2.5
"""Few blocks that become so much larger from half to half are one container."""
_FEW_BLOCKS: Final = 20
LOSS_MARGIN: Final = 3.0
"""Survivors must be so many times more than lost frees could leave behind."""
MOSTLY_FREED: Final = 0.5
NEVER_FREED: Final = 0.9
"""Shares of a window's blocks that survive: below the first and above the second are
sites that free most, and that free (nearly) nothing."""
_WATCH_S: Final = (110.0, 150.0, 270.0)
"""How long to watch where most, some, or none of the blocks are freed."""
_TAILS: Final = 1.5
"""And at least so many times the tail's age."""
_CONFIDENCE: Final = 0.4
"""Least confidence for calling it a leak."""
MOST_CONFIDENT: Final = 0.97
MOST_CONFIDENT_NEVER_FREED: Final = 0.80
"""Caps: births and deaths cannot tell a leak from a container that only grows."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The best window of each site: a row per site."""

    leaking: Mask
    """Everything holds."""
    growing: Mask
    """All but the time watched (or the confidence) holds. Includes ``leaking``."""
    doubtful: Mask
    """It would be growing, but lost frees could leave as many blocks behind."""
    start_s: F64
    end_s: F64
    """The window."""
    survivors: F64
    born: F64
    """Blocks born in the window."""
    confidence: F64
    watch_s: F64
    """How long the window has to be."""
    strangers_share: F64
    """Frees of blocks from before the start for each survivor, in the newer half."""


class Curve:
    """What was born until a moment, per site, as a line between the slices' edges."""

    def __init__(self, edges_s: F64, per_slice: F64) -> None:
        self._edges_s = edges_s
        self._sums = np.zeros((*per_slice.shape[:-1], len(edges_s)))
        np.cumsum(per_slice, axis=-1, out=self._sums[..., 1:])

    def at(self, time_s: F64) -> F64:
        """Until these moments: a row of them per site."""
        edges = self._edges_s
        after = np.clip(np.searchsorted(edges, time_s, side="right"), 1, len(edges) - 1)
        low, high = edges[after - 1], edges[after]
        part = np.clip((time_s - low) / (high - low), 0, 1)
        if self._sums.ndim == 1:
            before, until = self._sums[after - 1], self._sums[after]
        else:
            before = np.take_along_axis(self._sums, after - 1, axis=1)
            until = np.take_along_axis(self._sums, after, axis=1)
        value: F64 = before + part * (until - before)
        return value

    def between(self, times_s: F64) -> F64:
        """From each moment to the next."""
        return np.diff(self.at(times_s), axis=1)


@dataclass(frozen=True, slots=True)
class _Curves:
    """What the windows are cut from."""

    alive: Curve
    alive_bytes: Curve
    born: Curve
    load: Curve
    strangers: Curve


def find_growth(
    population: Population, tail: Tail, loss_share: F64, clean_from_s: float = 0.0
) -> Growth:
    """Tries all windows on all sites.

    ``loss_share``: per site, the share of its blocks that may look alive because their
    frees were lost. Windows begin at ``clean_from_s`` or later.
    """
    curves = _Curves(
        *(
            Curve(population.edges_s, figures)
            for figures in (population.alive, population.alive_bytes, population.born,
                            population.load, population.strangers)
        )
    )  # fmt: skip
    end_s = np.maximum(population.now_s - tail.age_s, clean_from_s + 1e-3)
    watched_s = end_s - clean_from_s
    steady = tail.found & ~_slows_down(curves, clean_from_s, end_s)
    best: Growth | None = None
    for start_s in _starts(clean_from_s, watched_s, end_s):
        found = _try_window(curves, tail, start_s, end_s, loss_share)
        found.leaking[:] &= steady
        found.growing[:] &= steady
        found.doubtful[:] &= steady
        best = found if best is None else _better(best, found)
    assert best is not None
    return best


def _starts(clean_from_s: float, watched_s: F64, end_s: F64) -> list[F64]:
    """Where windows begin, the widest first."""
    starts = [clean_from_s + fraction * watched_s for fraction in _FRACTIONS]
    return starts + [np.maximum(end_s - length_s, starts[0]) for length_s in _LENGTHS_S]


def _better(first: Growth, second: Growth) -> Growth:
    """For each site a leak rather than growth rather than nothing, and the earlier found."""
    prefer = (
        (second.leaking & ~first.leaking)
        | (second.growing & ~first.growing)
        | (second.doubtful & ~first.doubtful & ~first.growing)
    )
    columns = (
        np.where(prefer, getattr(second, name), getattr(first, name))
        for name in Growth.__dataclass_fields__
    )
    return Growth(*columns)


def _try_window(curves: _Curves, tail: Tail, start_s: F64, end_s: F64, loss_share: F64) -> Growth:
    steps = np.arange(CHUNKS + 1) / CHUNKS
    length_s = np.maximum(end_s - start_s, 1e-3)
    moments = start_s[:, None] + length_s[:, None] * steps
    survivors = curves.alive.between(moments)
    size_bytes = curves.alive_bytes.between(moments)
    born = curves.born.between(moments)
    first, second = _halves(survivors)
    count, births = first + second, born.sum(axis=1)
    share = count / np.maximum(births, 1)
    correction = _correction(*_halves(curves.load.between(moments)))
    few_stay = share < MOSTLY_FREED
    correction[few_stay] = np.maximum(correction, _correction(*_halves(born)))[few_stay]
    grows = (
        (np.count_nonzero(survivors >= 0.5, axis=1) >= _FEWEST_CHUNKS)
        & (second >= 2)
        & (second * correction >= _PACE * first - _SLACK * np.sqrt(0.5 * first + second))
        & (count >= FEWEST_SURVIVORS)
        & ~_one_container(count, first, second, *_halves(size_bytes))
    )
    above_loss = count >= LOSS_MARGIN * loss_share * births
    watch_s = np.maximum(
        np.select([few_stay, share < NEVER_FREED], _WATCH_S[:2], _WATCH_S[2]), _TAILS * tail.age_s
    )
    pace = second * correction / np.maximum(first, 1)
    confidence = _confidence(count, pace, tail.kept, length_s, share)
    old_frees = _halves(curves.strangers.between(moments))[1]
    return Growth(
        leaking=grows & above_loss & (length_s >= watch_s) & (confidence >= _CONFIDENCE),
        growing=grows & above_loss,
        doubtful=grows & ~above_loss,
        start_s=start_s,
        end_s=end_s,
        survivors=count,
        born=births,
        confidence=confidence,
        watch_s=watch_s,
        strangers_share=old_frees / np.maximum(second, 1),
    )


def _halves(chunks: F64) -> tuple[F64, F64]:
    half = CHUNKS // 2
    return chunks[:, :half].sum(axis=1), chunks[:, half:].sum(axis=1)


def _correction(first: F64, second: F64) -> F64:
    """By how much less is to be expected, since less was done."""
    return np.clip(first / np.maximum(second, 1), 1, _LARGEST_CORRECTION)


def _one_container(
    count: F64, first: F64, second: F64, first_bytes: F64, second_bytes: F64
) -> Mask:
    """Whether these are a container's chunks, each much larger than the one before."""
    larger: Mask = second_bytes / np.maximum(second, 1) > _GROWING_BLOCKS * (
        first_bytes / np.maximum(first, 1)
    )
    return (count < _FEW_BLOCKS) & larger


def _confidence(count: F64, pace: F64, kept: F64, length_s: F64, share: F64) -> F64:
    """More survivors, a steadier pace, a flatter tail and a longer watch are worth more."""
    base = (1 - np.exp(-count / 6)) * np.minimum(1, 0.5 + 0.5 * pace) * np.sqrt(kept)
    some_freed = np.minimum(MOST_CONFIDENT, base * (1 - np.exp(-1.6 * length_s / 120)))
    none_freed = np.minimum(MOST_CONFIDENT_NEVER_FREED, base * (1 - np.exp(-length_s / 450)))
    confidence: F64 = np.where(share < NEVER_FREED, some_freed, none_freed)
    return confidence


def _slows_down(curves: _Curves, from_s: float, end_s: F64) -> Mask:
    """Whether fewer and fewer survive, over doubling stretches of all the time watched."""
    moments = from_s + (end_s - from_s)[:, None] * np.array([1 / 8, 1 / 4, 1 / 2, 1])
    lengths_s = np.diff(moments, axis=1)
    survivors = curves.alive.between(moments)
    load = curves.load.between(moments) / lengths_s
    # Survivors per second, as if the load had never fallen since.
    one, two, three = (survivors / lengths_s).T
    error_two, error_three = (np.sqrt(survivors) / lengths_s).T[1:]
    after_one = _rate_correction(load[:, 0], load[:, 2])
    after_two = _rate_correction(load[:, 1], load[:, 2])
    middle = _rate_correction(load[:, 0], load[:, 1])
    slower: Mask = three * after_two < 0.75 * two - _SLACK * np.hypot(
        error_three * after_two, 0.75 * error_two
    )
    ever_slower: Mask = (three * after_one < 0.65 * one - _SLACK * error_three * after_one) & (
        two * middle < 0.9 * one - _SLACK * error_two * middle
    )
    return slower | ever_slower


def _rate_correction(before: F64, now: F64) -> F64:
    corrected: F64 = np.clip(before / np.maximum(now, 1e-9), 1, _LARGEST_CORRECTION)
    return corrected
