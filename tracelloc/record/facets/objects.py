"""Counts the objects of the traced programs by type, if their runtime is supported.

The programs pay nothing for that. A census takes tracelloc about 0.3 µs per object, so it pauses
after each. Censuses are more frequent at first, until it is clear whether something grows.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tracelloc.heap.heap import Heap
from tracelloc.model.figures import F64, I64, resized
from tracelloc.model.frames import RuntimeFrame, RuntimeFrames
from tracelloc.model.objects import (
    FunctionLine,
    Holders,
    NativeGrowth,
    ObjectCensus,
    ObjectFindings,
    TypeSuspect,
    divide_by_rate,
)
from tracelloc.record.facets.facet import Facet, FacetContext, InspectedProcess, InspectionBudget
from tracelloc.record.runtimes.supported import watch_objects
from tracelloc.text import NS_PER_S

_MOST_POINTS: Final = 8
_LEAST_POINTS: Final = 4  # Of censuses that are compared: two more than define a proportion
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
    """Finds stacks whose blocks grow in proportion to the objects of a type, over time."""

    def __init__(self, caller_of: Callable[[int, Heap], FunctionLine | None]) -> None:
        """``caller_of``: the runtime's function that calls C extensions in a stack, if any."""
        self._points: deque[_Point] = deque(maxlen=_MOST_POINTS)
        self._caller_of = caller_of

    def add_census(self, census: ObjectCensus, heap: Heap) -> None:
        """Adds a census and the live blocks at its time. May be called from any thread."""
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
        """Returns native growth by the type that it follows best. Needs the session's lock."""
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
            stacks = candidates[(best == row) & (errors[row] <= _TOLERANCE)]
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
    """Returns how far each stack's blocks deviate from the proportion to a type's objects."""
    objects = np.array([point.objects.get(name, 0) for point in points], np.float64)
    grown = objects - objects[0]
    if grown[-1] < _LEAST_GROWTH:
        return np.full(counts.shape[1], np.inf)
    blocks = (counts - counts[0]).astype(np.float64)
    share = blocks / np.maximum(blocks[-1], 1)
    deviations: F64 = np.abs(share - (grown / grown[-1])[:, None]).max(axis=0)
    return deviations


class ObjectStacks:
    """Joins findings about objects with call stacks. Call ``join`` with the session's lock."""

    def __init__(self, frames: RuntimeFrames, is_interpreter: Callable[[int], bool]) -> None:
        """``is_interpreter``: whether an address is in a runtime's or the C libraries' code."""
        self.findings: ObjectFindings | None = None  # The last findings, with what was joined
        self._frames = frames
        self._noted: ObjectFindings | None = None
        self._searched: dict[str, Holders] = {}  # Whose tables were looked up last
        self._growers: dict[str, FunctionLine] = {}
        self._is_interpreter = is_interpreter
        self._native: dict[str, NativeGrowth] = {}
        self.natives = NativeGrowths(self._extension_caller)

    def join(self, findings: ObjectFindings | None, heap: Heap) -> None:
        """Joins new findings with stacks, soon after a search: tables move whenever they grow."""
        if findings is self._noted:
            return
        self._noted = self.findings = findings
        if findings is not None and (findings.suspects or findings.minor):
            every = [*findings.suspects, *findings.minor]
            self._native = self.natives.grown_with(every, heap)
            joined = [self._joined(one, heap) for one in every]
            joined.sort(key=lambda one: -one.bytes_per_min)
            suspects, minor = divide_by_rate(joined)
            self.findings = replace(findings, suspects=suspects, minor=minor)

    def _joined(self, suspect: TypeSuspect, heap: Heap) -> TypeSuspect:
        name, holders = suspect.name, suspect.holders
        if holders is not None and holders is not self._searched.get(name):
            self._searched[name] = holders
            found = self._grower(holders, heap)
            if found is not None:
                self._growers[name] = found
        return replace(suspect, grower=self._growers.get(name), native=self._native.get(name))

    def _grower(self, holders: Holders, heap: Heap) -> FunctionLine | None:
        """Returns the function that has allocated most of the holders' tables; None if unknown."""
        stacks = heap.table.stacks_at(np.array(holders.tables, np.uint64))
        frames = (self._function(stack, heap) for stack in stacks.tolist() if stack >= 0)
        counts = Counter(frame for frame in frames if frame is not None)
        return counts.most_common(1)[0][0] if counts else None

    def _extension_caller(self, stack: int, heap: Heap) -> FunctionLine | None:
        """Returns a stack's innermost function of the runtime, if it calls a C extension."""
        is_others = False
        for address in heap.stacks.frames(stack) or ():
            frame = self._frames.find(address)
            if frame is not None:
                return _line(frame) if is_others else None
            is_others = is_others or not self._is_interpreter(address)
        return None

    def _function(self, stack: int, heap: Heap) -> FunctionLine | None:
        found = map(self._frames.find, heap.stacks.frames(stack) or ())
        return next((_line(frame) for frame in found if frame is not None), None)


def _line(frame: RuntimeFrame) -> FunctionLine:
    return FunctionLine(frame.function or "?", frame.file, frame.line)


_PAUSE_NS: Final = 2 * NS_PER_S  # Least time from one census to the next
_QUIET_NS: Final = 30 * NS_PER_S  # Time between censuses of programs in which no type grows
_JITTER: Final = 0.6180339887  # Varies pauses by up to half: periodic changes are no growth
_MEMORY_SHARE: Final = 4  # One census may use this fraction (1/n) of tracelloc's remaining memory


class ObjectsFacet(Facet[ObjectFindings]):
    """Counts of objects by type, joined with the call stacks that allocate for them."""

    name = "objects"
    task = "object census"
    share = 1 / 24

    def __init__(self, process: InspectedProcess, context: FacetContext) -> None:
        super().__init__(process, context)
        self._watches = watch_objects(process.process, process.space)
        self._stacks = ObjectStacks(process.space.files.runtime_frames, process.is_interpreter)
        for watch in self._watches:
            watch.on_census = lambda census: self._stacks.natives.add_census(census, process.heap)
        self._numbers = itertools.count()

    def pause_ns(self, _now_ns: int) -> int | None:
        if not self.context.reads_memory:
            return None
        jitter = 1 + next(self._numbers) * _JITTER % 1 / 2
        is_growing = any(watch.is_growing for watch in self._watches)
        return int((_PAUSE_NS if is_growing else _QUIET_NS) * jitter)

    def inspect(self, budget: InspectionBudget) -> ObjectFindings | None:
        for watch in self._watches:
            if budget.memory_bytes is not None:
                watch.most_bytes = budget.memory_bytes // _MEMORY_SHARE
            watch.update_findings()
        return self._found

    @property
    def _found(self) -> ObjectFindings | None:
        found = (watch.findings for watch in self._watches)
        return next((each for each in found if each is not None), None)

    def accept(self, result: ObjectFindings) -> None:
        """Joins findings with call stacks at once: tables move whenever they grow."""
        self._stacks.join(result, self.process.heap)
        self.result = self._stacks.findings

    def refresh(self) -> None:
        for watch in self._watches:
            watch.refresh()

    def catch_up(self) -> None:
        found = self._found
        if found is not None:
            self.accept(found)
