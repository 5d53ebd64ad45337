"""A call tree by weight, and the common parts of the flame graph and the tree view.

The refresher's thread makes ``Nodes`` once per tree, metric and search.
"""

import functools
import zlib
from collections.abc import Callable, Hashable
from typing import ClassVar, Final, NamedTuple

import numpy as np
from textual.binding import BindingType

from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import I64
from tracelloc.show.presentation.calltree import CallTree, LiveTree, Merger, Step
from tracelloc.show.presentation.profile import Metric
from tracelloc.text import format_percent
from tracelloc.ui.lineview import COMPUTING, LineView, bindings
from tracelloc.ui.stacknames import Search
from tracelloc.ui.view import TraceSource, View, ViewSelection

ROOT: Final = 0
_DEEPEST: Final = 2048  # Most levels of a layout; stacks are never deeper
Path = tuple[Step, ...]  # The steps from the root to a node, which identify it in any tree


class Nodes:
    """A call tree with weights by one metric, in order. Negative weights count as zero."""

    def __init__(
        self, tree: CallTree, metric: Metric = Metric.BYTES, *, inverted: bool = False,
        sampled: bool = False, search: Search | None = None, empty: str = "",
    ) -> None:  # fmt: skip
        """``sampled``: figures are estimates. ``empty``: the text for a tree without nodes."""
        self.empty = empty
        self.tree = tree
        self.metric = metric
        self.about = "~" if sampled else ""  # Prefix of figures
        own = tree.own[metric]
        self.totals: I64  # Per node, its children included; never negative
        has_less = (own < 0).any()
        self.totals = tree.totals_of(np.maximum(own, 0)) if has_less else tree.totals[metric]
        self.inverted = inverted
        # By parent, then by weight; without the root, which is its own parent.
        order = np.lexsort((-self.totals[1:], tree.parent[1:])) + 1
        self._children = order
        self._starts = np.searchsorted(tree.parent[order], np.arange(len(tree) + 1))
        self.is_searched = search is not None
        # Nodes whose name the search finds, and what these weigh together: nothing twice
        self.matches, self.matching = self._search(search) if search else (frozenset(), 0)
        share = format_percent(self.matching / max(self.weight(ROOT), 1))
        # Describes what the search finds
        self.found = f" found: {share} " if self.is_searched else ""

    def __len__(self) -> int:
        return len(self.tree)

    def children(self, node: int) -> list[int]:
        found: list[int] = self._children[self._starts[node] : self._starts[node + 1]].tolist()
        return found

    def parent(self, node: int) -> int:
        return int(self.tree.parent[node])

    def weight(self, node: int) -> int:
        return int(self.totals[node])

    def figure(self, value: int) -> str:
        return self.about + self.metric.unit.format(value)

    def below(self, node: int) -> int:
        return int(self.totals[node]) - max(int(self.tree.own[self.metric][node]), 0)

    def share(self, node: int) -> float:
        return int(self.totals[node]) / max(int(self.totals[ROOT]), 1)

    def path(self, node: int) -> Path:
        """Returns the path by which another tree's equal node is found."""
        steps: list[Step] = []
        while node != ROOT:
            steps.append(self.tree.steps[node])
            node = self.parent(node)
        steps.reverse()
        return tuple(steps)

    def nearest(self, path: Path) -> int:
        """Returns the node of a path, or of the longest part of it that exists."""
        node = ROOT
        for step in path:
            below = (child for child in self.children(node) if self.tree.steps[child] == step)
            child = next(below, None)
            if child is None:
                break
            node = child
        return node

    def hottest_path(self, node: int) -> list[int]:
        found: list[int] = []
        while True:
            children = self.children(node)
            if not children or self.weight(children[0]) < max(self.weight(node) / 2, 1):
                return found
            node = children[0]
            found.append(node)

    def stack_below(self, node: int) -> int | None:
        """Returns the stack that ends in a node, or in the heaviest path below it."""
        while True:
            stack = self.tree.stacks[node]
            if stack is not None:
                return stack
            children = self.children(node)
            if not children:
                return None
            node = children[0]

    def _search(self, search: Search) -> tuple[frozenset[int], int]:
        found = functools.cache(search.matches)
        matching = np.array([found(step.name) for step in self.tree.steps], np.bool_)
        # Nodes below another match are counted already. Parents precede children.
        covered = np.zeros(len(self), np.bool_)
        parent = self.tree.parent
        for rows in self.tree.levels[1:]:
            covered[rows] = covered[parent[rows]] | matching[parent[rows]]
        weight = int(self.totals[matching & ~covered].sum())
        return frozenset(np.flatnonzero(matching).tolist()), weight


def module_colour(module: str | None, colours: int) -> int:
    """Returns a number below ``colours`` that depends only on the file's name."""
    return zlib.crc32(base_name(module or "").encode(errors="replace")) % colours


def is_darker(name: str) -> bool:
    """Returns whether a function gets the darker shade, which distinguishes neighbours."""
    return bool(zlib.crc32(name[:256].encode(errors="replace")) & 1)


def growth_colour(growth: int, weight: int) -> int:
    """Returns a colour's number: 0 shrinks, 1 steady, 2 grows, 3 grows by a tenth a minute."""
    return 0 if growth < 0 else 1 if growth == 0 else 3 if growth * 10 >= weight else 2


class Box(NamedTuple):
    """The cells of a node: from ``left`` to before ``end``."""

    node: int
    left: int
    end: int


class Level(NamedTuple):
    """One line of a graph: boxes, and (left, end) of functions that are too narrow for a box."""

    boxes: list[Box]
    small: list[tuple[int, int]]


def lay_out(nodes: Nodes, zoomed: int, width: int) -> list[Level]:
    """Returns the boxes from the root on; those above ``zoomed`` have the whole width.

    Each child's exact position is rounded once, so rounding errors do not add up.
    """
    above = []
    node = zoomed
    while node != ROOT:
        node = nodes.parent(node)
        above.append(Level([Box(node, 0, width)], []))
    above.reverse()
    whole = nodes.weight(zoomed)
    found = [*above, Level([Box(zoomed, 0, width)], [])]
    line: list[tuple[int, int]] = [(zoomed, 0)]
    while line and whole and len(found) < _DEEPEST:
        boxes: list[Box] = []
        small: list[tuple[int, int]] = []
        following: list[tuple[int, int]] = []
        for parent, start in line:
            at = start
            for child in nodes.children(parent):
                weight = nodes.weight(child)
                if weight * width < whole:
                    # This child and all lighter ones are narrower than a cell.
                    rest = at * width // whole, (start + nodes.below(parent)) * width // whole
                    if rest[1] > rest[0]:
                        small.append(rest)
                    break
                boxes.append(Box(child, at * width // whole, (at + weight) * width // whole))
                following.append((child, at))
                at += weight
        if not boxes and not small:
            break
        found.append(Level(boxes, small))
        line = following
    return found


_NO_STACKS: Final = np.zeros(0, np.int64)
_NOTHING: Final = Nodes(
    CallTree.from_merged(
        Merger(Step("", None)).merged(), _NO_STACKS, (), dict.fromkeys(Metric, _NO_STACKS)
    )
)


class NodesView(LineView[Nodes]):
    """A widget that shows ``Nodes``; subclasses define the drawing and the selected node."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("nodes")]

    _data = _NOTHING

    @property
    def selected(self) -> int:
        raise NotImplementedError

    def _take(self, nodes: Nodes) -> None:
        raise NotImplementedError

    def show(self, content: Nodes, *, at_once: bool = False) -> None:
        """Replaces the tree; cursor, zoom and expanded nodes stay on their functions."""
        at_once = at_once or self._data is _NOTHING
        self.when_free(lambda: self._take(content), at_once=at_once)

    @property
    def key(self) -> Hashable | None:
        return self._data.stack_below(self.selected)

    def empty_text(self) -> str:
        return self._data.empty or COMPUTING

    def action_open(self) -> None:
        LineView.chosen(self)


def tree_maker(_source: TraceSource) -> Callable[[ViewSelection], Nodes]:
    """Returns a function that makes the call tree of all stacks; searches only mark functions."""
    tree: LiveTree | None = None
    tree_of = (0, False)

    def nodes(selection: ViewSelection) -> Nodes:
        nonlocal tree, tree_of
        snapshot, settings = selection.snapshot, selection.settings
        now = snapshot.table_number, settings.inverted
        if tree is None or tree_of != now:
            tree, tree_of = LiveTree(snapshot.target.command, inverted=settings.inverted), now
        chosen = np.zeros(len(snapshot.totals), np.bool_)
        chosen[selection.unsearched] = True
        figures = selection.figures
        columns = {Metric.BYTES: figures.live_bytes, Metric.BLOCKS: figures.live_count}
        for metric in (Metric.GROWTH, settings.metric):
            columns.setdefault(metric, metric.column(snapshot))
        weights = {metric: np.where(chosen, column, 0) for metric, column in columns.items()}
        return Nodes(
            tree.update(snapshot, selection.namer, weights),
            settings.metric,
            inverted=settings.inverted,
            sampled=snapshot.sample_bytes is not None,
            search=Search(settings.search) if settings.search else None,
            empty="" if len(selection.unsearched) else selection.why_empty,
        )

    return nodes


def nodes_view(
    title: str, key: str, widget: Callable[[], NodesView], others: str = ""
) -> View[Nodes]:
    """Returns a view of the call tree; all such views share one tree."""
    return View(
        title, key, tree_maker, widget, choose=lambda stack, _settings: stack, keeps_state=True,
        follows_metric=True, others=others,
    )  # fmt: skip
