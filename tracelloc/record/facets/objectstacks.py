"""Joins growing types of objects with the call stacks that allocate for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracelloc.heap.heap import Heap
from tracelloc.model.frames import RuntimeFrame, RuntimeFrames
from tracelloc.model.objects import (
    FunctionLine,
    Holders,
    NativeGrowth,
    ObjectFindings,
    TypeSuspect,
    divided,
)
from tracelloc.record.facets.nativegrowth import NativeGrowths


class ObjectStacks:
    """Joins the findings about one memory image. Call ``join`` with the session's lock held."""

    def __init__(self, frames: RuntimeFrames, is_interpreter: Callable[[int], bool]) -> None:
        """``is_interpreter``: see ``Inspected``."""
        self.findings: ObjectFindings | None = None  # The last findings, with what was joined
        self._frames = frames
        self._noted: ObjectFindings | None = None
        # By type: the holders whose tables were looked up last
        self._searched: dict[str, Holders] = {}
        self._growers: dict[str, FunctionLine] = {}
        self._is_interpreter = is_interpreter
        self._native: dict[str, NativeGrowth] = {}
        self.natives = NativeGrowths(self._extension_caller)

    def join(self, findings: ObjectFindings | None, heap: Heap) -> None:
        """Joins new findings soon after a search: tables move whenever they grow."""
        if findings is self._noted:
            return
        self._noted = self.findings = findings
        if findings is not None and (findings.suspects or findings.minor):
            every = [*findings.suspects, *findings.minor]
            self._native = self.natives.grown_with(every, heap)
            joined = [self._joined(one, heap) for one in every]
            joined.sort(key=lambda one: -one.bytes_per_min)
            suspects, minor = divided(joined)
            self.findings = replace(findings, suspects=suspects, minor=minor)

    def _joined(self, suspect: TypeSuspect, heap: Heap) -> TypeSuspect:
        name, holders = suspect.name, suspect.holders
        if holders is not None and holders is not self._searched.get(name):
            self._searched[name] = holders
            found = self._grower(holders, heap)
            if found is not None:
                self._growers[name] = found
        native = self._native.get(name)
        return replace(suspect, grower=self._growers.get(name), native=native)

    def _grower(self, holders: Holders, heap: Heap) -> FunctionLine | None:
        """The function that has allocated most of the holders' tables."""
        stacks = heap.table.stacks_at(np.array(holders.tables, np.uint64))
        frames = (self._function(stack, heap) for stack in stacks.tolist() if stack >= 0)
        counts = Counter(frame for frame in frames if frame is not None)
        return counts.most_common(1)[0][0] if counts else None

    def _extension_caller(self, stack: int, heap: Heap) -> FunctionLine | None:
        """The innermost function of the runtime in a stack, if code of others is below it."""
        is_others = False
        for address in heap.stacks.frames(stack) or ():
            frame = self._frames.find(address)
            if frame is not None:
                return _line(frame) if is_others else None
            is_others = is_others or not self._is_interpreter(address)
        return None

    def _function(self, stack: int, heap: Heap) -> FunctionLine | None:
        """The innermost function of the runtime in a call stack."""
        found = map(self._frames.find, heap.stacks.frames(stack) or ())
        return next((_line(frame) for frame in found if frame is not None), None)


def _line(frame: RuntimeFrame) -> FunctionLine:
    return FunctionLine(frame.function or "?", frame.file, frame.line)
