"""Joins growing types of a Python program with the call stacks that allocate for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from tracelloc.heap.heap import Heap
from tracelloc.model.frames import RuntimeFrame, RuntimeFrames
from tracelloc.model.objects import Holders, ObjectFindings, TypeSuspect


class ObjectStacks:
    """Joins the findings about one memory image. Call ``join`` with the session's lock held."""

    def __init__(self, frames: RuntimeFrames) -> None:
        self.findings: ObjectFindings | None = None
        """The last findings, with what was joined."""
        self._frames = frames
        self._noted: ObjectFindings | None = None
        self._searched: dict[str, Holders] = {}
        """By type: the holders whose tables were looked up last."""
        self._growers: dict[str, RuntimeFrame] = {}

    def join(self, findings: ObjectFindings | None, heap: Heap) -> None:
        """Joins new findings soon after a search: tables move whenever they grow."""
        if findings is self._noted:
            return
        self._noted = self.findings = findings
        if findings is not None and findings.suspects:
            suspects = tuple(self._joined(one, heap) for one in findings.suspects)
            self.findings = replace(findings, suspects=suspects)

    def _joined(self, suspect: TypeSuspect, heap: Heap) -> TypeSuspect:
        name, holders = suspect.name, suspect.holders
        if holders is not None and holders is not self._searched.get(name):
            self._searched[name] = holders
            found = self._grower(holders, heap)
            if found is not None:
                self._growers[name] = found
        return replace(suspect, grower=self._growers.get(name))

    def _grower(self, holders: Holders, heap: Heap) -> RuntimeFrame | None:
        """The function that has allocated most of the holders' tables."""
        stacks = heap.table.stacks_at(np.array(holders.tables, np.uint64))
        frames = (self.function(stack, heap) for stack in stacks.tolist() if stack >= 0)
        counts = Counter(frame for frame in frames if frame is not None)
        return counts.most_common(1)[0][0] if counts else None

    def function(self, stack: int, heap: Heap) -> RuntimeFrame | None:
        """The innermost function of the runtime in a call stack."""
        found = map(self._frames.find, heap.stacks.frames(stack) or ())
        return next((frame for frame in found if frame is not None), None)
