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
import numpy.typing as npt

from tracelloc.filters import NamedStack
from tracelloc.heap.totals import I64
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.target.space import Unresolved
from tracelloc.units import NS_PER_S
from tracelloc.views.calltree import CallTree, Step, steps
from tracelloc.views.metrics import Metric
from tracelloc.views.naming import Namer

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
        self._steps: list[Step] = [self._root]
        self._parents: list[int] = [0]
        self._depths: list[int] = [0]
        self._known: dict[tuple[int, Step], int] = {}
        self._ends = np.full(64, _NO_NODE, np.int64)
        """Per stack the node that it ends in."""
        self._unsure: set[int] = set()
        """Stacks with frames that may get another name."""
        self._stale: dict[int, None] = {}
        """Stacks whose names are older than the newest, the longest waiting first."""
        self._arrays: tuple[I64, I64, list[I64]] | None = None

    @property
    def waiting(self) -> int:
        """Stacks that will be looked at again by later updates."""
        return len(self._stale)

    def update(
        self,
        snapshot: Snapshot,
        namer: Namer,
        weights: Mapping[Metric, I64] | None = None,
    ) -> CallTree:
        """The tree of all stacks that hold something, or of those that weigh something.

        ``weights``: per metric one figure per stack, if they aren't to be the snapshot's.
        """
        weights = weights or weights_of(snapshot)
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
        return self._tree(weights, holding)

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
        at = 0
        for step in path:
            child = self._known.get((at, step))
            if child is None:
                child = self._known[at, step] = len(self._steps)
                self._steps.append(step)
                self._parents.append(at)
                self._depths.append(self._depths[at] + 1)
                self._arrays = None
            at = child
        self._ends[index] = at

    def _tree(self, weights: Mapping[Metric, I64], holding: npt.NDArray[np.intp]) -> CallTree:
        if self._arrays is None:
            parent, depth = np.array(self._parents, np.int64), np.array(self._depths, np.int64)
            order = np.argsort(depth, kind="stable")
            self._arrays = parent, depth, np.split(order, np.cumsum(np.bincount(depth))[:-1])
        parent, depth, levels = self._arrays
        ends = self._ends[holding]
        own: dict[Metric, I64] = {}
        totals: dict[Metric, I64] = {}
        for metric, column in weights.items():
            own[metric] = np.zeros(len(parent), np.int64)
            np.add.at(own[metric], ends, column[holding])
            totals[metric] = own[metric].copy()
            for rows in reversed(levels[1:]):
                np.add.at(totals[metric], parent[rows], totals[metric][rows])
        stacks: list[int | None] = [None] * len(parent)
        for node, index in zip(ends.tolist(), holding.tolist(), strict=True):
            stacks[node] = index
        # Who shows the tree may do so while the next one is made: these only grow here.
        return CallTree(list(self._steps), parent, depth, totals, own, stacks)


def _is_unsure(stack: NamedStack) -> bool:
    return not stack.frames or any(f.reason is Unresolved.PENDING for f in stack.frames)


def weights_of(snapshot: Snapshot) -> dict[Metric, I64]:
    """What each stack weighs; stacks that hold no block weigh nothing."""
    holds = snapshot.totals.live_count != 0
    return {metric: np.where(holds, metric.column(snapshot), 0) for metric in Metric}
