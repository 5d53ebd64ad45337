"""What the flame graph and the tree have in common: nodes, and a stack to be opened."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar, Final

import numpy as np
from textual.binding import Binding, BindingType

from tracelloc.ui.lines import LineView
from tracelloc.ui.naming import Search
from tracelloc.ui.nodes import Nodes
from tracelloc.ui.selection import Selection
from tracelloc.ui.source import Source
from tracelloc.ui.view import View
from tracelloc.views.calltree import CallTree, LiveTree, Merger, Step
from tracelloc.views.profile import Metric

_NO_STACKS: Final = np.zeros(0, np.int64)
_NOTHING: Final = Nodes(
    CallTree.of(Merger(Step("", None)).merged(), _NO_STACKS, (), dict.fromkeys(Metric, _NO_STACKS))
)


class NodesView(LineView[Nodes]):
    """A view of ``Nodes``. A subclass says how they are taken, and which one is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "w",
            "screen.metric",
            "Weight",
            tooltip=f"By {', '.join(metric.value for metric in Metric)}",
        ),
        Binding("o", "open", "Stack", tooltip="Open the heaviest stack through the function"),
    ]

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._data = _NOTHING

    @property
    def selected(self) -> int:
        """The node under the cursor."""
        raise NotImplementedError

    def _take(self, nodes: Nodes) -> None:
        raise NotImplementedError

    def show(self, content: Nodes, *, at_once: bool = False) -> None:
        """Replaces the tree; what the user chose stays on its functions.

        While somebody presses keys, it is replaced later, unless ``at_once``.
        """
        at_once = at_once or self._data is _NOTHING
        self.when_free(lambda: self._take(content), at_once=at_once)

    @property
    def key(self) -> Hashable | None:
        """The heaviest stack through the node under the cursor."""
        return self._data.stack_below(self.selected)

    def empty_text(self) -> str:
        """Nothing is held."""
        return " No stack holds anything within the limits."

    def action_open(self) -> None:
        """Chooses the stack, whatever Enter does with the function."""
        LineView.chosen(self)


def maker(_source: Source) -> Callable[[Selection], Nodes]:
    """Makes the call tree, not narrowed by the search: that is marked in it."""
    tree: LiveTree | None = None
    tree_of = (0, False)

    def nodes(selection: Selection) -> Nodes:
        nonlocal tree, tree_of
        snapshot, settings = selection.snapshot, selection.settings
        now = snapshot.target.exec_count, settings.inverted
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
        )

    return nodes


def nodes_view(name: str, title: str, key: str, widget: Callable[[], NodesView]) -> View[Nodes]:
    """A view of the call tree; all of them share one."""
    return View(
        name=name,
        title=title,
        key=key,
        maker=maker,
        widget=widget,
        choose=lambda stack, _settings: stack,
        keeps=True,
        by_metric=True,
    )
