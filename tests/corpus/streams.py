"""How blocks of one call site come and go: columns of births, deaths and sizes.

Times in seconds since the program was first looked at; blocks born before 0 were made
before tracing began. A death of infinity is a block that is never freed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Random = np.random.Generator
NEVER = np.inf


@dataclass(frozen=True)
class Stream:
    """The blocks of one site."""

    birth: F64
    death: F64
    size: F64
    # Which blocks are leaked; none unless given.
    leaked: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __add__(self, other: Stream) -> Stream:
        return Stream(
            np.concatenate([self.birth, other.birth]),
            np.concatenate([self.death, other.death]),
            np.concatenate([self.size, other.size]),
            np.concatenate([self.is_leaked(), other.is_leaked()]),
        )

    def is_leaked(self) -> npt.NDArray[np.bool_]:
        return self.leaked if len(self.leaked) else np.zeros(len(self.birth), np.bool_)


Sizes = float | tuple[float, float] | Callable[[Random, int], F64]


def sizes(random: Random, count: int, what: Sizes) -> F64:
    """All equal, log-uniform between two bounds, or drawn."""
    if callable(what):
        return what(random, count)
    if isinstance(what, tuple):
        return np.floor(np.exp(random.uniform(*np.log(what), count)))
    return np.full(count, what)


def poisson(random: Random, per_s: float, start: float, end: float) -> F64:
    """Moments at random."""
    count = random.poisson(per_s * max(0.0, end - start))
    return np.sort(random.uniform(start, end, count))


def every(period: float, start: float, end: float) -> F64:
    return np.arange(start, end, period)


def leak(random: Random, births: F64, size: Sizes) -> Stream:
    """None of these is ever freed."""
    count = len(births)
    leaked = np.ones(count, np.bool_)
    return Stream(births, np.full(count, NEVER), sizes(random, count, size), leaked)


def kept(random: Random, births: F64, size: Sizes) -> Stream:
    """Kept to the end, rightly."""
    count = len(births)
    return Stream(births, np.full(count, NEVER), sizes(random, count, size))


def churn(random: Random, births: F64, life: float, size: Sizes) -> Stream:
    """Exponential lifetimes with this mean."""
    count = len(births)
    lives = random.exponential(life, count)
    return Stream(births, births + lives, sizes(random, count, size))


def lived(random: Random, births: F64, lives: F64, size: Sizes) -> Stream:
    return Stream(births, births + lives, sizes(random, len(births), size))


def first_in_first_out(random: Random, births: F64, capacity: int, size: Sizes) -> Stream:
    """A cache of so many entries that drops the oldest."""
    death = np.append(births[capacity:], np.full(min(capacity, len(births)), NEVER))
    return Stream(births, death, sizes(random, len(births), size))


def replaced_at_random(random: Random, births: F64, capacity: int, size: Sizes) -> Stream:
    """A cache of so many slots; each entry goes into any of them."""
    slot = random.integers(0, capacity, len(births))
    death = np.full(len(births), NEVER)
    order = np.argsort(slot, kind="stable")
    same = slot[order][1:] == slot[order][:-1]
    death[order[:-1][same]] = births[order[1:][same]]
    return Stream(births, death, sizes(random, len(births), size))


def until_next(random: Random, births: F64, ends: F64, size: Sizes) -> Stream:
    """Freed all together at the next of these moments: arenas, phases, generations."""
    at = np.searchsorted(ends, births, side="right")
    death = np.append(ends, NEVER)[at]
    return Stream(births, death, sizes(random, len(births), size))


def regrown(births: F64, lengths: F64) -> Stream:
    """One block that is made again and again: each dies when the next one is there."""
    return Stream(births, np.append(births[1:], NEVER), lengths)


def some_leak(random: Random, stream: Stream, share: float, start: float = 0.0) -> Stream:
    """That share of the blocks, from then on, is not freed."""
    leaked = (random.random(len(stream.birth)) < share) & (stream.birth >= start)
    return Stream(stream.birth, np.where(leaked, NEVER, stream.death), stream.size, leaked)
