"""A call tree that is kept from one snapshot to the next.

Most stacks stay the same from tick to tick; only their weights change, and these are added
up by arrays. Names of a stack are asked for when it first holds something and, while names
still come in, again: those with unknown frames at once, the others a few at a time. Totals
are exact at any time, whatever the names are by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tracelloc.filters import NamedStack
from tracelloc.heap.totals import I64
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.target.space import Unresolved
from tracelloc.text import NS_PER_S
from tracelloc.views.calltree import CallTree, Merger, Step, steps
from tracelloc.views.naming import Namer
from tracelloc.views.profile import Metric

_BUDGET_S: Final = 0.02
"""How long one update goes on asking for names again that it had already."""
_NO_NODE: Final = -1


class LiveTree:
    """Nodes are only ever added, and keep their numbers, until filters change."""

    def __init__(
        self,
        root: str,
        *,
        inverted: bool = False,
        budget_s: float = _BUDGET_S,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.inverted = inverted
        self._root = Step(root, None)
        self._budget_ns = round(budget_s * NS_PER_S)
        self._clock_ns = clock_ns
        self._version: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._merger = Merger(self._root)
        self._ends = np.full(64, _NO_NODE, np.int64)
        """Per stack the node that it ends in."""
        self._unsure: set[int] = set()
        """Stacks with frames that may get another name."""
        self._stale: dict[int, None] = {}
        """Stacks whose names are older than the newest, the longest waiting first."""

    @property
    def waiting(self) -> int:
        """Stacks that will be looked at again by later updates."""
        return len(self._stale)

    def update(
        self,
        snapshot: Snapshot,
        namer: Namer,
        weights: Mapping[Metric, I64],
    ) -> CallTree:
        """The tree of all stacks that weigh something; ``weights`` has a column per metric."""
        version = namer.version
        if self._version is None or self._version[1] != version[1]:
            self._forget()
        holding = np.flatnonzero(np.logical_or.reduce([column != 0 for column in weights.values()]))
        self._make_room(len(snapshot.totals))
        fresh = holding[self._ends[holding] == _NO_NODE].tolist()
        if version != self._version:
            named = np.flatnonzero(self._ends != _NO_NODE).tolist()
            self._stale.update(dict.fromkeys(named))
        self._version = version
        for index in fresh:
            self._name(snapshot, namer, index)
        again = self._unsure.difference(fresh)
        for index in sorted(again):
            self._name(snapshot, namer, index)
        self._name_stale(snapshot, namer)
        return CallTree.of(
            self._merger.merged(),
            self._ends[holding],
            holding.tolist(),
            {metric: column[holding] for metric, column in weights.items()},
        )

    def _make_room(self, stacks: int) -> None:
        if stacks > len(self._ends):
            ends = np.full(max(stacks, 2 * len(self._ends)), _NO_NODE, np.int64)
            ends[: len(self._ends)] = self._ends
            self._ends = ends

    def _name_stale(self, snapshot: Snapshot, namer: Namer) -> None:
        started_ns = self._clock_ns()
        while self._stale and self._clock_ns() - started_ns <= self._budget_ns:
            self._name(snapshot, namer, next(iter(self._stale)))

    def _name(self, snapshot: Snapshot, namer: Namer, index: int) -> None:
        """Finds the node that a stack ends in, by the names of now."""
        self._stale.pop(index, None)
        stack = namer.stack(snapshot, index)
        if _is_unsure(stack):
            self._unsure.add(index)
        else:
            self._unsure.discard(index)
        path = steps(stack, index)
        if self.inverted:
            path.reverse()
        self._ends[index] = self._merger.add(path)[-1]


def _is_unsure(stack: NamedStack) -> bool:
    return not stack.frames or any(f.reason is Unresolved.PENDING for f in stack.frames)
