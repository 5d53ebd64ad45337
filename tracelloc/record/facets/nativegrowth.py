"""Finds native memory that grows in proportion to the objects of a type.

An object of an extension may stand for much memory that no census sees: a document of libxml2, an
image, a database. If blocks of a call stack accumulate as the objects of a type do, over several
censuses, the objects are taken to own them. Blocks that the interpreter itself has allocated, such
as tables, are left out: they count as bytes of their objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelloc.heap.heap import Heap
from tracelloc.model.figures import F64, I64, resized
from tracelloc.model.objects import FunctionLine, NativeGrowth, ObjectCensus, TypeSuspect

_MOST_POINTS: Final = 8
# Censuses that are compared: at least two more than the two that define a proportion.
_LEAST_POINTS: Final = 4
_LEAST_GROWTH: Final = 20  # Least growth of the objects and of the blocks
_LEAST_BYTES: Final = 4 << 10
_TOLERANCE: Final = 0.05  # Largest deviation from the proportion, as a share of the growth


class _Point(NamedTuple):
    """The live blocks of all stacks right after a census."""

    time_s: float
    objects: dict[str, int]  # Numbers of objects by type
    live_count: I64
    live_bytes: I64


class NativeGrowths:
    """Compares blocks and objects of one memory image over time."""

    def __init__(self, caller_of: Callable[[int, Heap], FunctionLine | None]) -> None:
        """``caller_of``: the runtime's function that calls C extensions in a stack, if any."""
        self._points: deque[_Point] = deque(maxlen=_MOST_POINTS)
        self._caller_of = caller_of

    def note(self, census: ObjectCensus, heap: Heap) -> None:
        """Adds a census. Any thread may call it: events of the last moment may be missing."""
        totals = heap.table.totals
        objects = {one.name: one.count for one in census.types}
        # Counts never change places, and stacks are only added: no lock is needed, but columns
        # may just be growing one by one.
        columns = (
            totals.allocated_count, totals.freed_count, totals.allocated_bytes, totals.freed_bytes
        )  # fmt: skip
        size = min(map(len, columns))
        allocated, freed, allocated_bytes, freed_bytes = (column[:size] for column in columns)
        self._points.append(
            _Point(census.time_s, objects, allocated - freed, allocated_bytes - freed_bytes)
        )

    def grown_with(self, suspects: Sequence[TypeSuspect], heap: Heap) -> dict[str, NativeGrowth]:
        """Native growth by the name of the type whose objects it follows best.

        Call it with the session's lock held.
        """
        points = list(self._points)
        if len(points) < _LEAST_POINTS or not suspects:
            return {}
        size = max(len(point.live_count) for point in points)
        counts = np.stack([resized(point.live_count, size) for point in points])
        growth = resized(points[-1].live_bytes, size) - resized(points[0].live_bytes, size)
        candidates = np.flatnonzero(
            (counts[-1] - counts[0] >= _LEAST_GROWTH) & (growth >= _LEAST_BYTES)
        )
        names = [one.name for one in suspects]
        errors = np.stack([_deviations(points, name, counts[:, candidates]) for name in names])
        best = errors.argmin(axis=0)
        minutes = (points[-1].time_s - points[0].time_s) / 60
        found = {}
        for row, name in enumerate(names):
            is_followed = (best == row) & (errors[row] <= _TOLERANCE)
            stacks = candidates[is_followed]
            stacks = stacks[np.argsort(-growth[stacks], kind="stable")]
            callers = [(stack, self._caller_of(stack, heap)) for stack in stacks.tolist()]
            native = [(stack, caller) for stack, caller in callers if caller is not None]
            if native and minutes > 0:
                own = [stack for stack, _ in native]
                live = int(resized(points[-1].live_bytes, size)[own].sum())
                rate = float(growth[own].sum()) / minutes
                found[name] = NativeGrowth(rate, live, tuple(own), native[0][1])
        return found


def _deviations(points: Sequence[_Point], name: str, counts: I64) -> F64:
    """How far each stack's blocks deviate from the proportion to a type's objects."""
    objects = np.array([point.objects.get(name, 0) for point in points], np.float64)
    grown = objects - objects[0]
    if grown[-1] < _LEAST_GROWTH:
        return np.full(counts.shape[1], np.inf)
    blocks = (counts - counts[0]).astype(np.float64)
    share = blocks / np.maximum(blocks[-1], 1)
    deviations: F64 = np.abs(share - (grown / grown[-1])[:, None]).max(axis=0)
    return deviations
