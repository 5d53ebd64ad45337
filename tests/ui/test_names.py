"""Names of stacks, made for what is on the screen first."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from tracelloc.model.frames import Frame
from tracelloc.show.filters import NamedStack
from tracelloc.ui.stacknames import FIRST, Names, Search

STACKS = 1000
SNAPSHOT: Any = SimpleNamespace(totals=range(STACKS))
ORDER = np.arange(STACKS)


class CountingNamer:
    """A namer of stacks with one frame each."""

    def __init__(self) -> None:
        self.version = (0, 0)
        self.symbols = self
        self.waiting = 1

    def stack(self, _snapshot: object, index: int) -> NamedStack:
        frame = Frame(index, f"work_{index}_{self.version[0]}", None, None, None, None, None)
        return NamedStack([frame], [False])


def slow_names(namer: Any, asked: list[int]) -> Names:
    """Names whose time is up at each look at the clock."""
    clock = iter(range(1_000_000))
    return Names(namer, lambda: float(next(clock)), lambda: asked.append(1))


def test_what_is_shown_comes_first() -> None:
    namer, asked = CountingNamer(), list[int]()
    names = slow_names(namer, asked)
    names.update(SNAPSHOT, ORDER)
    assert sorted(names.labels) == list(range(FIRST))
    assert names.pending == 0, "nobody waits for the others"
    assert not names.asks_again, "more names come with more symbols"
    assert names.labels.shown(0) == "work_0_0"
    assert not asked
    assert names.labels.shown(900) == "…"
    assert len(asked) == 1
    names.update(SNAPSHOT, ORDER)
    assert names.labels.shown(900) == "work_900_0"
    assert len(asked) == 1

    # A name that may have changed is shown until there is the new one; nobody is hurried.
    namer.version = (1, 0)
    names.update(SNAPSHOT, ORDER)
    assert names.labels.shown(900) == "work_900_0"
    assert names.label(SNAPSHOT, 901) == "work_901_1"
    names.update(SNAPSHOT, ORDER)
    assert names.labels.shown(900) == "work_900_1"
    assert len(asked) == 1


def test_names_come_at_last() -> None:
    namer = CountingNamer()
    names, pictures = slow_names(namer, []), 0
    namer.waiting = 0
    while not pictures or names.asks_again:
        names.update(SNAPSHOT, ORDER)
        pictures += 1
        assert names.pending == 0
    assert pictures == -(-STACKS // FIRST)
    assert sorted(names.labels) == ORDER.tolist()
    names = slow_names(CountingNamer(), [])
    left = []
    while not left or left[-1]:
        names.update(SNAPSHOT, ORDER, search=True)
        left.append(names.pending)
    assert left == [max(STACKS - n * FIRST, 0) for n in range(1, len(left) + 1)]
    found = names.found(Search("work_99"), ORDER.tolist())
    assert np.flatnonzero(found).tolist() == [99, *range(990, 1000)]
