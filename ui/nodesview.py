"""What the flame graph and the tree have in common: nodes, a search, a stack to be opened."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from tracelloc.ui.lines import LineView
from tracelloc.ui.nodes import Nodes, compile_search
from tracelloc.views.calltree import CallTree, Metric


class NodesView(LineView):
    """A view of ``Nodes``. A subclass says how they are taken, and which one is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "w",
            "screen.metric",
            "Weight",
            tooltip="By outstanding bytes, blocks, bytes allocated, growth, peak, temporary blocks",
        ),
    ]

    class Opened(Message):
        """The user wants to see a stack."""

        def __init__(self, view: NodesView, stack: int) -> None:
            super().__init__()
            self.view = view
            self.stack = stack

        @property
        def control(self) -> NodesView:
            """The view that sent it."""
            return self.view

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.inverted = False
        self._data: Nodes | None = None
        self._pattern: re.Pattern[str] | None = None
        self._matches: frozenset[int] = frozenset()
        self._matching = 0

    @property
    def selected(self) -> int:
        """The node under the cursor."""
        raise NotImplementedError

    def _take(self, nodes: Nodes, *, inverted: bool) -> None:
        raise NotImplementedError

    def show(self, nodes: Nodes, *, inverted: bool = False, at_once: bool = False) -> None:
        """Replaces the tree; what the user chose stays on its functions.

        While somebody presses keys, it is replaced later, unless ``at_once``.
        """
        at_once = at_once or self._data is None or self.inverted != inverted
        self.when_free(lambda: self._take(nodes, inverted=inverted), at_once=at_once)

    def show_tree(
        self, tree: CallTree, metric: Metric = Metric.BYTES, *, inverted: bool = False
    ) -> None:
        """The same for a tree that is small, or for a test."""
        self.show(Nodes(tree, metric), inverted=inverted, at_once=True)

    def search(self, pattern: str | re.Pattern[str] | None) -> None:
        """Marks matching functions and says what share they hold."""
        self._pattern = compile_search(pattern) if isinstance(pattern, str) else pattern
        self._search()
        self.refresh()

    def _search(self) -> None:
        self._matches, self._matching = frozenset(), 0
        if self._data is not None and self._pattern is not None:
            self._matches, self._matching = self._data.matches(self._pattern)

    @property
    def selected_stack(self) -> int | None:
        """The heaviest stack through the node under the cursor."""
        return None if self._data is None else self._data.stack_below(self.selected)
