"""Call stacks merged into one tree, and a function's lines with their bytes (pprof's ``list``).

A node is a function below its callers (inverted: below its callees). Nodes are stored in
columns, parents before their children; the root has number 0.

A live tree persists from one snapshot to the next. Most stacks stay the same between ticks;
only their weights change, which arrays add up. A stack is named when it first has a weight.
While names still arrive it is named again: stacks with unknown frames at once, the others a
few at a time. Totals are always exact, even if names are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.codefiles import Unresolved, base_name, is_c_library
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.model.stacks import NO_STACK
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.naming import Namer, frame_name, where
from tracelloc.show.presentation.profile import Metric, Sample
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S, printable

UNKNOWN = "[unknown]"


class Step(NamedTuple):
    """One line of a stack; siblings with equal steps are one node."""

    name: str
    module: str | None


def shown_name(frame: Frame, label: str | None) -> str:
    """Returns the name of a shown line; ``label``: that of the frame's collapsed run, or None."""
    return f"[{label}]" if label else frame_name(frame)


def shown_frames(stack: NamedStack) -> Iterator[tuple[str, Frame]]:
    """Yields (name, frame) of each shown line, innermost first; runs as ``[label]``."""
    for frame, hidden, label in zip(stack.frames, stack.hidden, stack.all_labels, strict=True):
        if not hidden:
            yield shown_name(frame, label), frame


def shown_lines(stack: NamedStack, indent: int) -> Iterator[str]:
    """Yields the shown frames of a stack without addresses, as ``NAME in FILE (file:line)``."""
    for name, frame in shown_frames(stack):
        yield f"{' ' * indent}{printable(name)}{where(frame)}"
    if not stack.frames:
        yield f"{' ' * indent}[no call stack]"


def root_name(stack: NamedStack) -> str:
    """Returns a stack's root module: the outermost module outside the C runtime."""
    modules = [base_name(frame.module) for frame in reversed(stack.frames) if frame.module]
    outermost = modules[0] if modules else UNKNOWN
    return next((module for module in modules if not is_c_library(module)), outermost)


def outer_steps(stack: NamedStack, index: int) -> list[Step]:
    """Returns the steps above a stack's frames: the root module, or why there are no frames."""
    if stack.frames:
        return [Step(root_name(stack), None)]
    reason = "[no call stack]" if index == NO_STACK else "[call stack lost]"
    return [Step(UNKNOWN, None), Step(reason, None)]


# Name, linker name, file and line of a function.
FunctionNames = tuple[str, str, str, int]


def code_locations(sample: Sample) -> Iterator[tuple[Frame, Sequence[FunctionNames]]]:
    """Yields the places in code of a stack, innermost first; inlined functions share one.

    A linker name that equals the name is left out, as pprof strips its template arguments. Unknown
    places have the address 0.
    """
    lines: list[FunctionNames] = []
    unknown = last = Frame(0, None, None, None, None, None, None)
    for name, frame in shown_frames(sample.stack):
        if lines and not (last.inlined and last.address == frame.address):
            yield last, lines
            lines = []
        raw = frame.raw_symbol or ""
        lines.append((name, "" if raw == name else raw, frame.file or "", frame.line or 0))
        last = frame
    if lines:
        yield last, lines
    elif sample.stack.frames:
        yield unknown, [(UNKNOWN, "", "", 0)]
    else:
        for step in reversed(outer_steps(sample.stack, sample.stat.index)):
            yield unknown, [(step.name, "", "", 0)]


def steps(stack: NamedStack, index: int) -> list[Step]:
    """Returns the shown steps of a stack, from its root module to the allocating function."""
    found = [Step(name, frame.module) for name, frame in shown_frames(stack)]
    return outer_steps(stack, index) + found[::-1]


@dataclass(frozen=True, slots=True)
class Merged:
    """Merged call stacks as columns of nodes. ``parent[n] < n``; the root is its own parent."""

    steps: Sequence[Step]
    parent: I64
    depth: I64  # 0 for the root
    levels: Sequence[I64]  # The nodes of each depth, the root's first

    def __len__(self) -> int:
        return len(self.steps)

    def own_of(self, ends: I64, weights: I64) -> I64:
        """Returns each node's sum of weights of stacks that end in it; ``ends``: node per stack."""
        own = np.zeros(len(self.parent), np.int64)
        np.add.at(own, ends, weights)
        return own

    def totals_of(self, own: I64) -> I64:
        """Returns each node's own weight plus the weights of all nodes below."""
        totals = own.copy()
        for nodes in reversed(self.levels[1:]):
            np.add.at(totals, self.parent[nodes], totals[nodes])
        return totals


class Merger:
    """Merges call stacks. Nodes are never removed, and keep their numbers."""

    def __init__(self, root: Step) -> None:
        self._steps = [root]
        self._parents = [0]
        self._depths = [0]
        self._known: dict[tuple[int, str, str | None], int] = {}
        self._merged: Merged | None = None

    def add(self, path: Iterable[tuple[str, str | None]]) -> list[int]:
        """Adds the steps of a stack below the root. Returns its nodes, the root first."""
        nodes = [0]
        at = 0
        for name, module in path:
            key = at, name, module
            child = self._known.get(key)
            if child is None:
                child = self._known[key] = len(self._steps)
                self._steps.append(Step(name, module))
                self._parents.append(at)
                self._depths.append(self._depths[at] + 1)
                self._merged = None
            nodes.append(child)
            at = child
        return nodes

    def merged(self) -> Merged:
        if self._merged is None:
            depth = np.array(self._depths, np.int64)
            order = np.argsort(depth, kind="stable")
            levels = np.split(order, np.cumsum(np.bincount(depth))[:-1])
            parent = np.array(self._parents, np.int64)
            # Callers may use the result while stacks are added.
            self._merged = Merged(list(self._steps), parent, depth, levels)
        return self._merged


@dataclass(frozen=True, slots=True)
class CallTree(Merged):
    """Merged stacks with their weights."""

    own: Mapping[Metric, I64]  # Weight per node, of stacks that end there
    totals: Mapping[Metric, I64]  # Weight per node, its children included
    stacks: Sequence[int | None]  # The index of a stack that ends in the node, None if none does

    @classmethod
    def from_merged(
        cls, merged: Merged, ends: I64, stacks: Iterable[int], weights: Mapping[Metric, I64]
    ) -> CallTree:
        """Makes a tree; ``ends``: the node in which each stack ends, ``weights``: per stack."""
        own = {metric: merged.own_of(ends, column) for metric, column in weights.items()}
        ending: list[int | None] = [None] * len(merged)
        for node, index in zip(ends.tolist(), stacks, strict=True):
            ending[node] = index
        totals = {metric: merged.totals_of(column) for metric, column in own.items()}
        columns = merged.steps, merged.parent, merged.depth, merged.levels
        return cls(*columns, own, totals, ending)


_BUDGET_S: Final = 0.02  # Time limit for one update to refresh names that it already has
_NO_NODE: Final = -1


_COMMAND_LETTERS: Final = 15  # The kernel cuts commands


class LiveTree:
    """A call tree that is kept from snapshot to snapshot; nodes keep their numbers."""

    def __init__(
        self, root: str, *, inverted: bool = False, budget_s: float = _BUDGET_S,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:  # fmt: skip
        self.inverted = inverted
        self._root = Step(root, None)
        self._budget_ns = round(budget_s * NS_PER_S)
        self._clock_ns = clock_ns
        self._version: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._merger = Merger(self._root)
        self._ends = np.full(64, _NO_NODE, np.int64)  # The node that each stack ends in
        self._unsure: set[int] = set()  # Stacks with frames whose names may still change
        self._stale: dict[int, None] = {}  # Stacks with outdated names, the longest waiting first

    def update(self, snapshot: Snapshot, namer: Namer, weights: Mapping[Metric, I64]) -> CallTree:
        """Returns the tree of all stacks with a weight; ``weights`` has a column per metric."""
        version = namer.version
        if self._version is None or self._version[1] != version[1]:
            self._forget()
        holding = np.flatnonzero(np.logical_or.reduce([column != 0 for column in weights.values()]))
        if (more := len(snapshot.totals) - len(self._ends)) > 0:
            more = max(more, len(self._ends))
            self._ends = np.pad(self._ends, (0, more), constant_values=_NO_NODE)
        fresh = holding[self._ends[holding] == _NO_NODE].tolist()
        if version != self._version:
            named = np.flatnonzero(self._ends != _NO_NODE).tolist()
            self._stale.update(dict.fromkeys(named))
        self._version = version
        for index in (*fresh, *sorted(self._unsure.difference(fresh))):
            self._name(snapshot, namer, index)
        started_ns = self._clock_ns()
        while self._stale and self._clock_ns() - started_ns <= self._budget_ns:
            self._name(snapshot, namer, next(iter(self._stale)))
        return CallTree.from_merged(
            self._merger.merged(), self._ends[holding], holding.tolist(),
            {metric: column[holding] for metric, column in weights.items()},
        )  # fmt: skip

    def _name(self, snapshot: Snapshot, namer: Namer, index: int) -> None:
        """Finds the node in which a stack ends, by the names known now."""
        self._stale.pop(index, None)
        stack = namer.stack(snapshot, index)
        if not stack.frames or any(f.reason is Unresolved.PENDING for f in stack.frames):
            self._unsure.add(index)
        else:
            self._unsure.discard(index)
        path = steps(stack, index)
        if path[0].name[:_COMMAND_LETTERS] == self._root.name:
            del path[0]  # The root is it already.
        if self.inverted:
            path.reverse()
        self._ends[index] = self._merger.add(path)[-1]


@dataclass(frozen=True, slots=True)
class ListedFunction:
    """A function whose source is requested."""

    step: Step
    file: str | None = None  # The source file; None: the file of its heaviest frame


def listed_function(frame: Frame) -> ListedFunction:
    """Returns the function of a frame, to list its source."""
    return ListedFunction(Step(frame_name(frame), frame.module), frame.file)


@dataclass(slots=True)
class LineFigures:
    """Live blocks of the stacks that pass through one line; each stack counts once."""

    own_bytes: int = 0  # Bytes of the stacks whose innermost shown line this is
    bytes: int = 0  # Bytes of all stacks through the line
    count: int = 0  # Blocks of all stacks through the line
    stack: int = -1  # The heaviest of the stacks
    stack_bytes: int = -1  # Bytes of `stack`

    def add(self, stack: int, size_bytes: int, count: int, *, is_own: bool) -> None:
        self.own_bytes += size_bytes if is_own else 0
        self.bytes += size_bytes
        self.count += count
        if size_bytes > self.stack_bytes:
            self.stack, self.stack_bytes = stack, size_bytes


@dataclass(frozen=True, slots=True)
class SourceListing:
    """Figures of one function, and of each line of its file that allocates or calls allocators."""

    function: ListedFunction
    file: str | None  # The source file; None if no frame of the function has one
    figures: LineFigures  # Figures of the whole function
    lines: Mapping[int, LineFigures]  # By line number
    own_lines: frozenset[int]  # Lines of the function

    @property
    def heaviest_line(self) -> int:
        """The function's line with most bytes; 0 if no line has bytes."""
        own = [line for line in self.own_lines if line in self.lines]
        return max(own, key=lambda line: (self.lines[line].bytes, -line), default=0)


@dataclass(slots=True)
class _Passage:
    named: NamedStack
    lines: frozenset[int]
    own: int  # The innermost shown line if it is in the file; else 0
    function_lines: frozenset[int]
    is_through: bool  # Whether the stack passes through the function, which may lack lines
    is_innermost: bool


@dataclass(slots=True)
class SourceLister:
    """Makes listings of one function, from one snapshot to the next."""

    function: ListedFunction
    _file: str | None = None
    _passages: dict[int, _Passage] = field(default_factory=dict)

    def listing(
        self, snapshot: Snapshot, namer: Namer, stacks: Sequence[int], sizes: I64, counts: I64
    ) -> SourceListing:
        """Makes the listing; ``stacks``: heaviest first, ``sizes`` and ``counts``: by stack."""
        if self._file is None:
            self._file = self.function.file or self._find_file(snapshot, namer, stacks)
            self._passages.clear()
        lines: dict[int, LineFigures] = {}
        whole, own_lines = LineFigures(), set[int]()
        for stack in stacks:
            named, passage = namer.stack(snapshot, stack), self._passages.get(stack)
            if passage is None or passage.named is not named:
                passage = self._passages[stack] = self._pass(named)
            if not passage.lines and not passage.is_through:
                continue
            size_bytes, count = int(sizes[stack]), int(counts[stack])
            for line in passage.lines:
                figures = lines.setdefault(line, LineFigures())
                figures.add(stack, size_bytes, count, is_own=line == passage.own)
            own_lines |= passage.function_lines
            if passage.is_through:
                whole.add(stack, size_bytes, count, is_own=passage.is_innermost)
        return SourceListing(self.function, self._file, whole, lines, frozenset(own_lines))

    def _find_file(self, snapshot: Snapshot, namer: Namer, stacks: Sequence[int]) -> str | None:
        for stack in stacks:
            for name, frame in shown_frames(namer.stack(snapshot, stack)):
                if frame.file is not None and Step(name, frame.module) == self.function.step:
                    return frame.file
        return None

    def _pass(self, named: NamedStack) -> _Passage:
        shown = list(shown_frames(named))
        through = [frame for name, frame in shown if Step(name, frame.module) == self.function.step]
        first = shown[0][1] if shown else None
        is_here = first is not None and bool(first.file) and first.file == self._file
        return _Passage(
            named,
            frozenset(f.line for f in named.frames if f.line and f.file and f.file == self._file),
            (first.line or 0) if first is not None and is_here else 0,
            frozenset(frame.line or 0 for frame in through if frame.file == self._file) - {0},
            bool(through),
            bool(through) and through[0] is first,
        )
