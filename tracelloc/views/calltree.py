"""Call stacks merged into one tree: what flame graphs and call trees draw.

A node is a function below its callers (or, inverted, above what it called). Nodes lie in
columns, parents before their children; the root has number 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracelloc.filters import NamedStack
from tracelloc.heap.stacks import NO_STACK
from tracelloc.heap.totals import I64
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.symbols import Frame
from tracelloc.target.procfs import base_name, is_c_library
from tracelloc.views.metrics import Metric
from tracelloc.views.naming import Namer

UNKNOWN = "[unknown]"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a stack: what makes two nodes the same."""

    name: str
    module: str | None


def frame_name(frame: Frame) -> str:
    """The symbol, or ``module+0xoffset``, or the bare address."""
    if frame.symbol is not None:
        return frame.symbol
    if frame.module is not None and frame.module_offset is not None:
        return f"{base_name(frame.module)}+0x{frame.module_offset:x}"
    return f"0x{frame.address:x}"


def shown_frames(stack: NamedStack) -> Iterator[tuple[str, Frame]]:
    """(name, frame) of what is to be shown, innermost first; runs as ``[label]``."""
    for frame, hidden, label in zip(stack.frames, stack.hidden, stack.all_labels, strict=True):
        if not hidden:
            yield f"[{label}]" if label else frame_name(frame), frame


def root_name(stack: NamedStack) -> str:
    """The module that the stack starts in: the outermost that is not the C runtime's."""
    modules = [base_name(frame.module) for frame in reversed(stack.frames) if frame.module]
    own = [module for module in modules if not is_c_library(module)]
    return (own or modules or [UNKNOWN])[0]


def steps(stack: NamedStack, index: int) -> list[Step]:
    """What is shown of a stack, its root module first, the allocating function last.

    Filtered frames are left out, collapsed runs are one step called ``[label]``.
    """
    if not stack.frames:
        reason = "[no call stack]" if index == NO_STACK else "[call stack lost]"
        return [Step(UNKNOWN, None), Step(reason, None)]
    found = [
        Step(f"[{part.label}]" if part.label else frame_name(part.frame), part.frame.module)
        for part in stack.parts()
        if part.frame is not None
    ]
    found.append(Step(root_name(stack), None))
    found.reverse()
    return found


@dataclass(frozen=True, slots=True)
class CallTree:
    """Columns of nodes. ``parent[n] < n``; the root is its own parent."""

    steps: Sequence[Step]
    parent: I64
    depth: I64
    """0 for the root."""
    totals: dict[Metric, I64]
    """Per node, its children included."""
    own: dict[Metric, I64]
    """Per node, of stacks that end there."""
    stacks: Sequence[int | None]
    """The index of a stack that ends in the node, None if none does."""

    def __len__(self) -> int:
        return len(self.steps)

    def children(self) -> list[list[int]]:
        """Per node its children, in the order of their numbers."""
        found: list[list[int]] = [[] for _ in self.steps]
        for node, parent in enumerate(self.parent.tolist()[1:], 1):
            found[parent].append(node)
        return found


def build_tree(
    stacks: Iterable[tuple[int, Sequence[Step], dict[Metric, int]]], root: Step
) -> CallTree:
    """A tree of (stack index, its steps from the root on, its weights)."""
    nodes: list[Step] = [root]
    parent = [0]
    depth = [0]
    ends: list[int | None] = [None]
    own: dict[Metric, list[int]] = {metric: [0] for metric in Metric}
    known: dict[tuple[int, Step], int] = {}
    for index, path, weights in stacks:
        at = 0
        for step in path:
            child = known.get((at, step))
            if child is None:
                child = known[at, step] = len(nodes)
                nodes.append(step)
                parent.append(at)
                depth.append(depth[at] + 1)
                ends.append(None)
                for column in own.values():
                    column.append(0)
            at = child
        ends[at] = index
        for metric, weight in weights.items():
            own[metric][at] += weight
    columns = {metric: np.array(column, np.int64) for metric, column in own.items()}
    totals = {metric: column.copy() for metric, column in columns.items()}
    # Children have higher numbers: from the end on, each is complete when it is added up.
    for node in range(len(nodes) - 1, 0, -1):
        for total in totals.values():
            total[parent[node]] += total[node]
    return CallTree(
        steps=nodes,
        parent=np.array(parent, np.int64),
        depth=np.array(depth, np.int64),
        totals=totals,
        own=columns,
        stacks=ends,
    )


def call_tree(
    snapshot: Snapshot,
    namer: Namer,
    stats: Iterable[StackStat] | None = None,
    *,
    inverted: bool = False,
) -> CallTree:
    """The tree of these stacks (default: all that hold a block), as far as they have names.

    Inverted, the children of the root are the allocating functions, their callers below.
    """
    paths = []
    for stat in snapshot.top_stacks() if stats is None else stats:
        path = steps(namer.stack(snapshot, stat.index), stat.index)
        if inverted:
            path.reverse()
        paths.append((stat.index, path, {metric: metric.of(stat) for metric in Metric}))
    return build_tree(paths, Step(snapshot.target.command, None))
