"""The test for a leak: windows of time in which survivors accumulate at a steady pace.

Each window ends where the survival tail begins: later blocks are too young to tell. It is cut into
six chunks of equal length. Its survivors (blocks born in a chunk that are alive) have to come from
nearly every chunk, at a pace that does not slow down, corrected by the process's load at the time.
Several windows are tried, the widest first: a leak may start late, and start-up memory must not
hide one. The onset of a leak is found by following the window's pace back, then cutting where it
begins.

Counting the generations that have survivors is the idea of GenCount (Sor et al.). The survival
tail, the pace and the time watched tell caches that fill from leaks. All times are in seconds
since tracing began.

The survival tail is the age from which the blocks of a site stop dying. The method is the
actuarial life table (Cutler and Ederer, 1958), the grouped form of Kaplan and Meier's estimate. At
the age ``x``, the blocks at risk are those that died later, or are alive and older. Live blocks are
censored: their lifetime is only known to exceed their age. A class's hazard is its deaths divided
by the blocks at risk, minus half of those that are censored within it. Blocks from before the start
were never seen to be born and are in no class, so lifetimes longer than the watch are unseen, but
nothing is biased.

The chance that a block which has reached ``x`` is never freed is estimated by the product
of the survival of all classes from there on, as far as ages have been seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelloc.dataclass import dataclass, fields
from tracelloc.heap.cohorts import LIFETIME_EDGES_S, LIFETIMES, Population
from tracelloc.model.figures import F64, I64, Mask, Rows
from tracelloc.verdict.parameters import P


@dataclass(frozen=True, slots=True)
class Tail:
    """Where each site's survival curve is flat."""

    found: Mask  # Sites whose survival curve becomes flat
    age_s: F64  # Age at which the curve becomes flat; 0 if it does not
    kept: F64  # Estimated share of blocks of that age that are never freed

    def select(self, rows: Rows) -> Tail:
        return Tail(self.found[rows], self.age_s[rows], self.kept[rows])


def ages_reached(population: Population) -> F64:
    """Returns how many live blocks have reached each class, as if births were even in a slice."""
    starts, ends = population.edges_s[:-1], population.edges_s[1:]
    born_by = population.now_s - LIFETIME_EDGES_S
    share = (born_by[None, :] - starts[:, None]) / (ends - starts)[:, None]
    return population.alive @ np.clip(share, 0, 1)


def deaths_from(population: Population) -> F64:
    """Returns the deaths in each lifetime class or a later one: a row per site."""
    return np.cumsum(population.lifetimes[:, ::-1], axis=1)[:, ::-1]


def kept_from(reached: F64, deaths: F64, lifetimes: F64) -> F64:
    """Returns the share of blocks never freed, of those that reach each lifetime class's age."""
    at_risk = reached + deaths
    censored = reached - np.append(reached[:, 1:], np.zeros((len(reached), 1)), axis=1)
    hazard = lifetimes / np.maximum(1, at_risk - censored / 2)
    hazard = np.where(at_risk >= P.tail_least_at_risk, np.minimum(1, hazard), 0)
    return np.exp(-np.cumsum(hazard[:, ::-1], axis=1)[:, ::-1])


def find_tails(population: Population) -> Tail:
    """Finds the lowest age from which each site's blocks have stopped dying."""
    reached = ages_reached(population)
    deaths = deaths_from(population)
    kept = kept_from(reached, deaths, population.lifetimes)
    age_s = LIFETIME_EDGES_S
    flat = (
        (age_s >= P.tail_least_age_s)
        & (age_s <= P.tail_most_age_share * population.now_s)
        & (kept >= P.tail_least_kept)
        & (reached >= P.tail_least_old)
        & (deaths <= P.tail_most_deaths * reached)
    )
    found: Mask = np.any(flat, axis=1)
    at = np.where(found, flat.argmax(axis=1), LIFETIMES - 1)
    rows = np.arange(len(at))
    return Tail(found, np.where(found, age_s[at], 0.0), np.where(found, kept[rows, at], 0.0))


@dataclass(frozen=True, slots=True)
class Growth:
    """The best window of each site: a row per site."""

    leaking: Mask  # Sites for which all conditions of a leak hold
    growing: Mask  # All conditions but time watched or confidence hold: includes `leaking`
    doubtful: Mask  # Would be growing, but lost frees could leave as many blocks behind
    start_s: F64
    end_s: F64  # End of the window, seconds since tracing began
    survivors: F64
    born: F64  # Blocks born in the window
    confidence: F64
    watch_s: F64  # Seconds that the window must last for a leak verdict
    never_freed: Mask  # Almost nothing was freed, in the window or before it
    old_frees_per_survivor: F64  # Frees of blocks from before tracing, in the newer half

    @classmethod
    def none(cls, sites: int) -> Growth:
        columns: dict[str, Any] = {field.name: np.zeros(sites) for field in fields(cls)}
        for name in ("leaking", "growing", "doubtful", "never_freed"):
            columns[name] = np.zeros(sites, np.bool_)
        return cls(**columns)

    def put(self, sites: Rows, other: Growth, rows: Rows) -> None:
        """Overwrites the rows of some sites with ``rows`` of another table."""
        for field in fields(self):
            getattr(self, field.name)[sites] = getattr(other, field.name)[rows]


class CumulativeCurve:
    """Cumulative figures at any time, linear between the slices' edges."""

    def __init__(self, edges_s: F64, per_slice: F64) -> None:
        """``per_slice``: figures, a row per site, or one row of the whole process. Several tables
        may be stacked; then as many results are returned.
        """
        self._edges_s = edges_s
        self._sums = np.zeros((*per_slice.shape[:-1], len(edges_s)))
        np.cumsum(per_slice, axis=-1, out=self._sums[..., 1:])

    def at(self, time_s: F64, sites: Rows | None = None) -> F64:
        """Returns values at times: a row of times for each site (default: all sites, in order)."""
        edges = self._edges_s
        after = np.clip(np.searchsorted(edges, time_s, side="right"), 1, len(edges) - 1)
        low, high = edges[after - 1], edges[after]
        part = np.clip((time_s - low) / (high - low), 0, 1)
        if self._sums.ndim == 1:
            before, until = self._sums[after - 1], self._sums[after]
        else:
            rows = (np.arange(len(time_s)) if sites is None else sites)[:, None]
            before, until = self._sums[..., rows, after - 1], self._sums[..., rows, after]
        value: F64 = before + part * (until - before)
        return value

    def between(self, time_s: F64, sites: Rows | None = None) -> F64:
        """Returns the increase of the figures from each time to the next; see ``at``."""
        return np.diff(self.at(time_s, sites), axis=-1)


@dataclass(frozen=True, slots=True)
class _Curves:
    """Cumulative curves that windows are cut from."""

    sites: CumulativeCurve  # Blocks alive, their bytes, and blocks born
    load: CumulativeCurve
    old_frees: CumulativeCurve


def find_growth(
    population: Population, tail: Tail, loss_share: F64, clean_from_s: float = 0.0
) -> Growth:
    """Finds the best window of each site, by trying all windows.

    ``loss_share``: per site, the share of its blocks that may look alive because their
    frees were lost. Windows begin at ``clean_from_s`` or later.
    """
    none = Growth.none(len(loss_share))
    end_s = np.maximum(population.now_s - tail.age_s, clean_from_s + 1e-3)
    halves = np.linspace(np.full(len(end_s), clean_from_s), end_s, 3, axis=1)
    older, newer = CumulativeCurve(population.edges_s, population.alive).between(halves).T
    # No window can have more survivors than these.
    enough = (older + newer >= P.least_survivors) & (newer >= P.least_new_survivors)
    sites = np.flatnonzero(tail.found & enough)
    chosen, end_s = population.select(sites), end_s[sites]
    tables = np.stack([chosen.alive, chosen.alive_bytes, chosen.born])
    curves = _Curves(
        CumulativeCurve(population.edges_s, tables),
        CumulativeCurve(population.edges_s, population.load),
        CumulativeCurve(population.edges_s, population.unmatched),
    )
    steady = np.flatnonzero(~_slows_down(curves, clean_from_s, end_s))
    if not len(steady):
        return none
    starts = _starts(clean_from_s, end_s[steady])
    at = np.repeat(steady, starts.shape[1])  # Those of one site are adjacent
    tried = _try_windows(
        curves, at, tail.select(sites[at]), starts.ravel(), end_s[at], loss_share[sites[at]]
    )
    worth = np.select([tried.leaking, tried.growing, tried.doubtful], [3, 2, 1], 0)
    best = worth.reshape(starts.shape).argmax(axis=1) + np.arange(len(steady)) * starts.shape[1]
    none.put(sites[steady], tried, best)
    return none


def _starts(clean_from_s: float, end_s: F64) -> F64:
    """Returns starts of windows: a row per site, the widest window first."""
    fractions = clean_from_s + np.array(P.window_fractions) * (end_s - clean_from_s)[:, None]
    lengths = np.maximum(end_s[:, None] - np.array(P.window_lengths_s), clean_from_s)
    return np.concatenate([fractions, lengths], axis=1)


def _try_windows(  # noqa: PLR0917
    curves: _Curves, sites: Rows, tail: Tail, start_s: F64, end_s: F64, loss_share: F64
) -> Growth:
    """Tests one window for leak-like growth per row; ``sites``: the site of each row."""
    steps = np.arange(P.window_parts + 1) / P.window_parts
    length_s = np.maximum(end_s - start_s, 1e-3)
    moments = start_s[:, None] + length_s[:, None] * steps
    survivors, size_bytes, born = curves.sites.between(moments, sites)
    first, second = _halves(survivors)
    count, births = first + second, born.sum(axis=1)
    share = count / np.maximum(births, 1)
    correction = _correction(*_halves(curves.load.between(moments)))
    few_stay = share < P.mostly_freed
    correction[few_stay] = np.maximum(correction, _correction(*_halves(born)))[few_stay]
    grows = (
        (np.count_nonzero(survivors >= 0.5, axis=1) >= P.window_least_parts)
        & (second >= P.least_new_survivors)
        & (second * correction >= P.least_pace * first - P.noise * np.sqrt(0.5 * first + second))
        & (count >= P.least_survivors)
        & ~_one_container(count, first, second, *_halves(size_bytes))
    )
    before = curves.sites.between(np.stack([np.zeros(len(start_s)), start_s], axis=1), sites)
    freed_before = before[2, :, 0] - before[0, :, 0]
    never_freed = (share >= P.never_freed) & (freed_before < P.least_survivors)
    above_loss = count >= P.loss_margin * loss_share * births
    watch_s = np.maximum(
        np.select([few_stay, ~never_freed], P.watch_s[:2], P.watch_s[2]), P.watch_tails * tail.age_s
    )
    pace = second * correction / np.maximum(first, 1)
    confidence = _confidence(count, pace, tail.kept, length_s, never_freed)
    old_frees = _halves(curves.old_frees.between(moments))[1]
    return Growth(
        leaking=grows & above_loss & (length_s >= watch_s) & (confidence >= P.least_confidence),
        growing=grows & above_loss,
        doubtful=grows & ~above_loss,
        start_s=start_s,
        end_s=end_s,
        survivors=count,
        born=births,
        confidence=confidence,
        watch_s=watch_s,
        never_freed=never_freed,
        old_frees_per_survivor=old_frees / np.maximum(second, 1),
    )


def _halves(chunks: F64) -> tuple[F64, F64]:
    half = P.window_parts // 2
    return chunks[:, :half].sum(axis=1), chunks[:, half:].sum(axis=1)


def _correction(first: F64, second: F64) -> F64:
    """Returns the factor by which fewer survivors are expected because the load fell."""
    return np.clip(first / np.maximum(second, 1), 1, P.most_load_correction)


def _one_container(
    count: F64, first: F64, second: F64, first_bytes: F64, second_bytes: F64
) -> Mask:
    """Whether a site's blocks are one container's storage, each much larger than the last one."""
    larger: Mask = second_bytes / np.maximum(second, 1) > P.container_growth * (
        first_bytes / np.maximum(first, 1)
    )
    return (count < P.container_most_blocks) & larger


def _confidence(count: F64, pace: F64, kept: F64, length_s: F64, never_freed: Mask) -> F64:
    """Returns the confidence: survivors, a steady pace, a flat tail and a long watch raise it."""
    base = (1 - np.exp(-count / 6)) * np.minimum(1, 0.5 + 0.5 * pace) * np.sqrt(kept)
    some_freed = np.minimum(P.most_confidence, base * (1 - np.exp(-1.6 * length_s / 120)))
    none_freed = np.minimum(P.most_confidence_never_freed, base * (1 - np.exp(-length_s / 450)))
    confidence: F64 = np.where(never_freed, none_freed, some_freed)
    return confidence


def _slows_down(curves: _Curves, from_s: float, end_s: F64) -> Mask:
    """Whether fewer and fewer blocks survive, over doubling stretches of the time watched."""
    moments = from_s + (end_s - from_s)[:, None] * np.array([1 / 8, 1 / 4, 1 / 2, 1])
    lengths_s = np.diff(moments, axis=1)
    survivors, _, born = curves.sites.between(moments)
    few_stay = survivors.sum(axis=1) < P.mostly_freed * born.sum(axis=1)
    load, own_load = curves.load.between(moments) / lengths_s, born / lengths_s

    def correction(before: int, now: int) -> F64:
        """Returns the correction for a fallen load, the process's or the site's own."""
        whole = _rate_correction(load[:, before], load[:, now])
        own = _rate_correction(own_load[:, before], own_load[:, now])
        return np.where(few_stay, np.maximum(whole, own), whole)

    one, two, three = (survivors / lengths_s).T
    error_two, error_three = (np.sqrt(survivors) / lengths_s).T[1:]
    after_one, after_two, middle = correction(0, 2), correction(1, 2), correction(0, 1)
    slower: Mask = three * after_two < 0.75 * two - P.noise * np.hypot(
        error_three * after_two, 0.75 * error_two
    )
    ever_slower: Mask = (three * after_one < 0.65 * one - P.noise * error_three * after_one) & (
        two * middle < 0.9 * one - P.noise * error_two * middle
    )
    return slower | ever_slower


def _rate_correction(before: F64, now: F64) -> F64:
    return np.clip(before / np.maximum(now, 1e-9), 1, P.most_load_correction)


def steady_rate(population: Population, from_s: F64, end_s: F64) -> F64:
    """Returns the bytes per minute that survive from each site's onset to a later time.

    Parts of the time in which blocks are much larger than usual count as if blocks had the usual
    size: a single allocation is not a pace.
    """
    steps = np.arange(P.window_parts + 1) / P.window_parts
    moments = from_s[:, None] + (end_s - from_s)[:, None] * steps
    # All blocks of the slice in which it began are later than that.
    moments[:, 0] = slice_starts(population.edges_s, from_s)
    tables = np.stack([population.alive, population.alive_bytes])
    count, size_bytes = CumulativeCurve(population.edges_s, tables).between(moments)
    sizes = size_bytes / np.maximum(count, 1e-9)
    # Empty parts sort behind the others, so that the median is that of the others.
    ordered = np.sort(np.where(count > 0, sizes, np.inf), axis=1)
    filled = np.count_nonzero(count > 0, axis=1)
    usual = ordered[np.arange(len(ordered)), np.maximum(filled - 1, 0) // 2]
    usual = np.where(filled > 0, usual, 0.0)
    like = count * usual[:, None]
    kept = np.where(size_bytes > P.container_growth * like, like, size_bytes).sum(axis=1)
    rate: F64 = kept / np.maximum(end_s - from_s, 1e-3) * 60
    return rate


def find_onset(population: Population, start_s: F64, end_s: F64) -> F64:
    """Returns when sites began to leak, seconds since the start, given the window of the leak."""
    edges = np.minimum(population.edges_s, end_s[:, None])
    until = CumulativeCurve(population.edges_s, population.alive).at(edges)
    first = np.searchsorted(population.edges_s, start_s + 1e-9, side="right") - 1
    first = _walk_back(until, edges, np.clip(first, 0, edges.shape[1] - 2))
    return beginning_within(edges, until, _cut(until, edges, first))


def beginning_within(edges: F64, until: F64, first: I64) -> F64:
    """Returns when sites began to leak within their slices ``first``, at their later pace."""
    rows = np.arange(len(first))
    begin, end = edges[rows, first], edges[rows, first + 1]
    count = until[rows, first + 1] - until[rows, first]
    pace = (until[:, -1] - until[rows, first + 1]) / np.maximum(edges[:, -1] - end, 1e-3)
    filled = count / np.maximum((end - begin) * pace, 1e-9)
    return end - (end - begin) * np.minimum(filled, 1.0)


def slice_starts(edges_s: F64, time_s: F64) -> F64:
    """Returns the edge, in seconds, at which the slice of each time begins."""
    return edges_s[np.searchsorted(edges_s, time_s, side="right") - 1]


def _walk_back(until: F64, edges: F64, first: I64) -> I64:
    """Returns the first slice since which survivors have come at nearly the latest pace."""
    rows = np.arange(len(first))
    kept, lengths = np.diff(until, axis=1), np.diff(edges, axis=1)
    pace = (until[:, -1] - until[rows, first]) / np.maximum(edges[:, -1] - edges[rows, first], 1e-9)
    at, since = first.copy(), first.copy()
    walking = np.ones(len(at), np.bool_)
    total, walked = np.zeros(len(at)), np.zeros(len(at))
    for _ in range(kept.shape[1]):
        before = np.maximum(at - 1, 0)
        here, length = kept[rows, before], lengths[rows, before]
        walking &= (at > 0) & (here <= P.onset_bulk * np.maximum(pace * length, 1))
        total += np.where(walking, here, 0)
        walked += np.where(walking, length, 0)
        walking &= total >= P.onset_same_pace * pace * walked
        if not walking.any():
            break
        at = np.where(walking, before, at)
        since = np.where(walking & (here > 0), at, since)  # The earliest slice that kept blocks
    return since


def _cut(until: F64, edges: F64, first: I64) -> I64:
    """Moves the onset to the slice where survivors lag most behind a steady pace, if any do."""
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
    late = (lag[rows, at] > P.onset_deviation * np.sqrt(count)) & (before < P.onset_slower * after)
    cut: I64 = np.where(late, at, first)
    # The first block of the leak may come some slices later.
    kept = np.append(np.diff(until, axis=1) > 0, np.zeros((len(rows), 1), np.bool_), axis=1)
    waits = (slices >= cut[:, None]) & kept
    return np.where(waits.any(axis=1), waits.argmax(axis=1), cut)
