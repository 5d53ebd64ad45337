"""The survival tail and the loss floor, against the same written with loops."""

import itertools
import math

import numpy as np
import pytest

from tests.corpus.replay import START_NS, events_of, looks, stacks_of
from tests.corpus.streams import Stream
from tracelloc.heap.cohorts import LIFETIME_EDGES_S, Population
from tracelloc.text import NS_PER_S
from tracelloc.verdict.growth import ages_reached, deaths_from, find_tails, kept_from
from tracelloc.verdict.loss import Gaps, common_share
from tracelloc.verdict.multistack import in_proportion
from tracelloc.verdict.parameters import P


def population_of(births: np.ndarray, lives: np.ndarray, end_s: int) -> Population:
    """One stack whose blocks are born and die at these times."""
    stream = Stream(births, births + lives, np.full(len(births), 100.0))
    *_, (_, table, _) = looks(events_of([stream], end_s), stacks_of(["site"]), end_s)
    census = table.cohorts.census(START_NS + end_s * NS_PER_S, 2)
    return census.survivors_by_age(np.arange(1, 2))


def reference(ages: np.ndarray, lives: np.ndarray) -> list[float]:
    """The share that is never freed, from each class on, block by block."""
    edges = [*LIFETIME_EDGES_S.tolist(), math.inf]
    hazards = []
    for low, high in itertools.pairwise(edges):
        died = sum(low <= life < high for life in lives)
        at_risk = sum(age >= low for age in ages) + sum(life >= low for life in lives)
        censored = sum(low <= age < high for age in ages)
        hazard = min(1.0, died / max(1.0, at_risk - censored / 2))
        hazards.append(hazard if at_risk >= P.tail_least_at_risk else 0.0)
    return [math.exp(-sum(hazards[n:])) for n in range(len(hazards))]


@pytest.mark.parametrize("seed", range(8))
def test_life_table(seed: int) -> None:
    random = np.random.default_rng(seed)
    ages = random.exponential(60, 300)
    lives = random.exponential(20, 500)
    reached = np.array([[np.count_nonzero(ages >= x) for x in LIFETIME_EDGES_S]], np.float64)
    deaths = np.array([[np.count_nonzero(lives >= x) for x in LIFETIME_EDGES_S]], np.float64)
    filed = deaths - np.append(deaths[:, 1:], [[0.0]], axis=1)
    np.testing.assert_allclose(kept_from(reached, deaths, filed)[0], reference(ages, lives))


def test_tails_and_gaps() -> None:
    births = np.sort(np.random.default_rng(1).uniform(0, 300, 6000))
    reached = ages_reached(population_of(births, np.full(6000, np.inf), 300))[0]
    truth = [np.count_nonzero(300 - births >= x) for x in LIFETIME_EDGES_S]
    np.testing.assert_allclose(reached, truth, rtol=0.01, atol=15)
    random = np.random.default_rng(2)
    births = np.sort(random.uniform(0, 400, 8000))
    lives = np.where(random.random(8000) < 0.05, np.inf, random.uniform(1, 20, 8000))
    population = population_of(births, lives, 400)
    tail = find_tails(population)
    assert tail.found[0]
    assert 11 <= tail.age_s[0] <= 23
    assert tail.kept[0] > 0.7
    assert deaths_from(population)[0, 0] == np.count_nonzero(births + lives < 400)
    random = np.random.default_rng(3)
    births = np.sort(random.uniform(0, 400, 8000))
    assert not find_tails(population_of(births, random.exponential(60, 8000), 400)).found[0]
    assert common_share(np.array([50.0]), np.array([5000.0])).tolist() == [0.0]
    assert common_share(np.array([5.0]), np.array([50.0])).tolist() == [0.0]
    gaps = Gaps()
    assert gaps.clean_from_ns() is None
    gaps.record_losses(0, 10 * NS_PER_S)
    assert gaps.clean_from_ns() is None
    gaps.record_losses(5, 20 * NS_PER_S)
    gaps.record_losses(5, 30 * NS_PER_S)
    assert gaps.clean_from_ns() == 20 * NS_PER_S
    assert not gaps.are_lasting
    gaps = Gaps()
    for second in range(0, 200, 5):
        gaps.record_losses(second + 1, second * NS_PER_S)
    assert gaps.are_lasting
    assert gaps.clean_from_ns() is None


@pytest.mark.parametrize("seed", range(20))
def test_common_share(seed: int) -> None:
    """The quartile over all other busy sites, each of them left out in turn."""
    random = np.random.default_rng(seed)
    born = random.integers(1, 100_000, 12).astype(float)
    alive = np.floor(born * random.uniform(0, 0.05, 12))
    found = common_share(alive, born)
    busy = [n for n in range(12) if born[n] >= 1000]
    for site in range(12):
        others = sorted((alive[n] / born[n], born[n]) for n in busy if n != site)
        goal, until, expected = 0.25 * sum(w for _, w in others), 0.0, 0.0
        for share, weight in others:
            until += weight
            if until >= goal - 1e-9:
                expected = share
                break
        assert found[site] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_proportion(seed: int) -> None:
    """Parts of one object are told from leaks that happen to be as many."""
    one = np.random.default_rng(seed).poisson(30, 20).astype(float)
    assert in_proportion(one, one)
    assert in_proportion(3 * one, one)
    shaken = one + np.where(np.arange(20) % 2, 8, -8)
    assert not in_proportion(one, shaken), "as many in all, but not at the same times"
    assert not in_proportion(5 * one, 3 * one), "no object has one part and two thirds"
    assert not in_proportion(one[:6], one[:6]), "too little to tell"
