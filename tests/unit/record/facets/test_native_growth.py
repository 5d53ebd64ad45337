"""Native memory that grows with the objects of a type, and what only grows at the same time."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.pythonobjects import census
from tracelloc.heap.heap import Heap
from tracelloc.model.figures import Totals
from tracelloc.model.objects import (
    FunctionLine,
    GrowingType,
    NativeGrowth,
    TypeSuspect,
    divide_by_rate,
)
from tracelloc.model.verdicts import Verdict
from tracelloc.record.facets.objects import NativeGrowths

PARSE = FunctionLine("parse", "/srv/feeds.py", 12)
FAST, SLOW = "m.Fast", "m.Slow"
OWNED, TWICE, OTHER, INTERPRETER, SMALL = 1, 2, 3, 4, 5


def suspect(name: str, rate: float = 1000.0) -> TypeSuspect:
    return TypeSuspect(GrowingType(name, 0.0, 60, rate), 900, 900, Verdict.GROWING, None)


def heap(*counts: int) -> Heap:
    """Stacks with so many live blocks of 1,000 bytes."""
    live = np.array([0, *counts], np.int64)
    totals = Totals.empty(len(live))
    totals.allocated_count, totals.allocated_bytes = live, 1000 * live
    # Stacks have just been added, and not all columns are larger yet.
    totals.freed_count = np.zeros(len(live) + 3, np.int64)
    return cast(Heap, SimpleNamespace(table=SimpleNamespace(totals=totals)))


def found_after(count: int, other: Callable[[int], int]) -> dict[str, NativeGrowth]:
    growths = NativeGrowths(lambda stack, _: None if stack == INTERPRETER else PARSE)
    for at in range(count):
        fast, slow = 100 * at, 10 * at * at
        # A stack is seen for the first time after the second count.
        stacks = [300 + fast, 2 * slow, other(at), fast, *([at] if at > 1 else [])]
        counts = {FAST: (fast, 64 * fast), SLOW: (slow, 64 * slow)}
        growths.add_census(census(1e9 + 5 * at, **counts), heap(*stacks))
    return growths.grown_with([suspect(FAST), suspect(SLOW)], heap(0))


def test_blocks_and_stacks_of_a_type() -> None:
    assert found_after(6, lambda at: 100 * (at > 2) + 30 * (at > 4)) == {
        FAST: NativeGrowth(500 * 1000 * 60 / 25, 800_000, (OWNED,), PARSE),
        SLOW: NativeGrowth(500 * 1000 * 60 / 25, 500_000, (TWICE,), PARSE),
    }
    assert found_after(6, lambda at: 1000 * at + 20 * (at % 2))[FAST].stacks == (OTHER, OWNED)
    native = NativeGrowth(1 << 20, 1 << 20, (OWNED,), PARSE)
    few, many = suspect(FAST), replace(suspect(SLOW), native=native)
    assert divide_by_rate([many, few]) == ((many,), (few,))


@pytest.mark.parametrize(("count", "is_enough"), [(3, False), (4, True), (50, True)])
def test_it_takes_four_counts(count: int, *, is_enough: bool) -> None:
    assert bool(found_after(count, lambda at: -at)) == is_enough
