"""The survival tail: the age from which the blocks of a site stop dying.

The method is the actuarial life table (Cutler and Ederer, 1958), the grouped form of Kaplan and
Meier's estimate. At the age ``x``, the blocks at risk are those that died later, or are alive and
older. Live blocks are censored: their lifetime is only known to exceed their age. A class's
hazard is its deaths divided by the blocks at risk, minus half of those that are censored within
it. Blocks from before the start were never seen to be born and are in no class, so lifetimes
longer than the watch are unseen, but nothing is biased.

The chance that a block which has reached ``x`` is never freed is estimated by the product
of the survival of all classes from there on, as far as ages have been seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.heap.cohorts import LIFETIME_EDGES_S, LIFETIMES, Population
from tracelloc.model.figures import F64, Mask
from tracelloc.verdict.parameters import P


@dataclass(frozen=True, slots=True)
class Tail:
    """Where each site's survival curve is flat."""

    found: Mask  # Sites whose survival curve becomes flat
    age_s: F64  # Age at which the curve becomes flat; 0 if it does not
    kept: F64  # Estimated share of blocks of that age that are never freed

    def select(self, rows: npt.NDArray[np.intp]) -> Tail:
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
