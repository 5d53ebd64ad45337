"""Counts the objects of the traced programs by type, if their runtime is supported.

The programs pay nothing for it. A census takes tracelloc about 0.3 µs per object, so it pauses
after each. Censuses are more frequent at first, until it is clear whether something grows.
"""

from __future__ import annotations

import itertools
from typing import Final

from tracelloc.model.objects import ObjectFindings
from tracelloc.record.facets.objectstacks import ObjectStacks
from tracelloc.record.facets.seam import Facet, FacetContext, Inspected, InspectionBudget
from tracelloc.record.runtimes.supported import watch_objects
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 2 * NS_PER_S  # Least time from one census to the next
_QUIET_NS: Final = 30 * NS_PER_S  # Time between censuses of programs in which no type grows
# Varies pauses by up to half, so that periodic changes do not look like growth.
_JITTER: Final = 0.6180339887
_MEMORY_SHARE: Final = 4  # One census may use this fraction (1/n) of tracelloc's remaining memory


class ObjectsFacet(Facet[ObjectFindings]):
    """Objects by type, joined with the call stacks that allocate for them."""

    name = "objects"
    task = "object census"
    share = 1 / 24

    def __init__(self, process: Inspected, context: FacetContext) -> None:
        super().__init__(process, context)
        self._watches = watch_objects(process.process, process.space)
        self._stacks = ObjectStacks(process.space.files.runtime_frames, process.is_interpreter)
        for watch in self._watches:
            watch.on_census = lambda census: self._stacks.natives.note(census, process.heap)
        self._numbers = itertools.count()

    def pause_ns(self, _now_ns: int) -> int | None:
        """Some seconds; half a minute if no type grows."""
        if not self.context.reads_memory:
            return None
        jitter = 1 + next(self._numbers) * _JITTER % 1 / 2
        is_growing = any(watch.is_growing for watch in self._watches)
        return int((_PAUSE_NS if is_growing else _QUIET_NS) * jitter)

    def inspect(self, budget: InspectionBudget) -> ObjectFindings | None:
        """Takes a census, and finds the holders of growing types."""
        for watch in self._watches:
            if budget.memory_bytes is not None:
                watch.most_bytes = budget.memory_bytes // _MEMORY_SHARE
            watch.update_findings()
        return self._found

    @property
    def _found(self) -> ObjectFindings | None:
        """The findings on the runtime that the program has."""
        found = (watch.findings for watch in self._watches)
        return next((each for each in found if each is not None), None)

    def accept(self, result: ObjectFindings) -> None:
        """Joins them with call stacks at once: tables move whenever they grow."""
        self._stacks.join(result, self.process.heap)
        self.result = self._stacks.findings

    def refresh(self) -> None:
        """Takes a census unless there is a fresh one."""
        for watch in self._watches:
            watch.refresh()

    def catch_up(self) -> None:
        """Takes over the last census."""
        found = self._found
        if found is not None:
            self.accept(found)
