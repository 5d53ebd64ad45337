"""The call tree as lines that expand and collapse: callers first, or inverted."""

from collections.abc import Iterable, Sequence, Set
from typing import ClassVar, Final

from textual.binding import BindingType

from tracelloc.model.codefiles import base_name
from tracelloc.show.presentation.calltree import Step
from tracelloc.show.presentation.profile import Metric
from tracelloc.text import format_percent, signed_size
from tracelloc.ui.lineview import Piece, bindings
from tracelloc.ui.nodes import ROOT, Nodes, NodesView, Path, nodes_view
from tracelloc.ui.tableview import arrow, crop, fit

# Least share of the whole tree at which `Expand all` expands a function.
_WORTH_OPENING: Final = 0.01
_WIDE: Final = 76  # Width in cells from which all columns are shown


class TreeView(NodesView):
    """The call tree. Right expands, left collapses, Enter toggles, or opens the stack of a leaf."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("tree")]
    header_lines = 1
    footer_lines = 1

    _open: Set[int] = frozenset()
    _touched = False
    _rows: Sequence[tuple[int, int]] = ()

    # Data.

    def _take(self, nodes: Nodes) -> None:
        selected: Path = ()
        if self._data.inverted == nodes.inverted:
            selected = self._data.path(self.selected)
            if self._touched:
                self._open = _carried_over(self._data, self._open, nodes)
        else:
            self._touched = False
        self._data = nodes
        if not self._touched:
            self._open = {ROOT, *nodes.hottest_path(ROOT)}
        self._flatten(nodes.nearest(selected))

    @property
    def selected(self) -> int:
        return self._rows[self.cursor][0] if self.cursor < len(self._rows) else ROOT

    def _weighty(self, node: int) -> list[int]:
        children = self._data.children(node)
        while children and not self._data.weight(children[-1]):
            children.pop()
        return children

    def _flatten(self, selected: int) -> None:
        indents = {ROOT: 0}
        rows: list[tuple[int, int]] = []
        waiting = [ROOT] if self._data.weight(ROOT) else []
        while waiting:
            node = waiting.pop()
            if node in self._open:
                waiting.extend(reversed(self._weighty(node)))
            if node != ROOT:
                parent = self._data.parent(node)
                parts = parent == ROOT or len(self._weighty(parent)) > 1
                indents[node] = indents[parent] + parts
            rows.append((node, indents[node]))
        self._rows = rows
        places = {node: row for row, (node, _) in enumerate(self._rows)}
        while selected not in places and selected != ROOT:
            selected = self._data.parent(selected)
        self.cursor = places.get(selected, 0)
        self.rows_changed()

    def _touch(self, selected: int) -> None:
        self._touched = True
        self._flatten(selected)
        self.show_cursor()

    def row_count(self) -> int:
        return len(self._rows)

    def fixed_line(self, line: int, width: int) -> Iterable[Piece]:
        if line == 0:
            title = f"{self._data.metric.heading:>11} {'share':>7}"
            if width >= _WIDE:
                title += f" {'own':>10} {'blocks':>9} {'growth/min':>14}"
            below = "callers" if self._data.inverted else "callees"
            yield f"{title}  function, {below} ↓", "lines--header"
        else:
            step = self._data.tree.steps[self.selected]
            if found := self._data.found:
                yield found, "lines--match"
            module = f"  {base_name(step.module)}" if step.module else ""
            yield crop(f" {step.name}{module}", width - len(found)), "lines--header"

    def row(self, row: int, width: int) -> Iterable[Piece]:
        node, indent = self._rows[row]
        nodes, tree = self._data, self._data.tree
        figures = f"{nodes.figure(nodes.weight(node)):>11} {format_percent(nodes.share(node)):>7}"
        yield figures, None
        used = len(figures)
        if width >= _WIDE:
            own = int(tree.own[nodes.metric][node])
            blocks = f"{nodes.about}{int(tree.totals[Metric.BLOCKS][node]):,}"
            more = f" {nodes.figure(own) if own else '':>10} {blocks:>9}"
            growth = int(tree.totals[Metric.GROWTH][node])
            grown = f" {signed_size(growth) + ' ' + arrow(growth):>14}"
            yield more, None
            yield grown, "lines--grown" if growth > 0 else "lines--shrunk" if growth < 0 else None
            used += len(more) + len(grown)
        room = width - used - 2
        # The indentation leaves a third of the room for the name.
        shift = min(2 * indent, max(0, 2 * room // 3))
        sign = " " if not self._weighty(node) else "▾" if node in self._open else "▸"
        yield f"  {' ' * shift}{sign} ", None
        name = tree.steps[node].name
        found = node in nodes.matches
        text = fit(f"*{name}" if found else name, room - shift - 2)
        yield text, "lines--match" if found else None

    # Opening and closing.

    def action_open_node(self) -> None:
        node = self.selected
        if not self._weighty(node):
            return
        if node in self._open:
            self.move_to(self.cursor + 1)
            return
        opened, below = {node}, node
        while len(children := self._weighty(below)) == 1:
            below = children[0]
            opened.add(below)
        self._open |= opened
        self._touch(node)

    def action_close_node(self) -> None:
        node = self.selected
        if node in self._open and self._weighty(node) and node != ROOT:
            self._open -= {node}
            self._touch(node)
        else:
            parent = self._data.parent(node)
            self.move_to(next((r for r, (n, _) in enumerate(self._rows) if n == parent), 0))

    def chosen(self) -> None:
        node = self.selected
        if not self._weighty(node):
            self.action_open()
        elif node in self._open:
            self.action_close_node()
        else:
            self.action_open_node()

    def action_open_all(self) -> None:
        waiting = [self.selected]
        while waiting:
            self._open |= {node := waiting.pop()}
            weighty = self._weighty(node)
            waiting += [n for n in weighty if self._data.share(n) >= _WORTH_OPENING]
        self._touch(self.selected)

    def action_close_all(self) -> None:
        self._open = {ROOT}
        self._touch(self.selected)


def _carried_over(old: Nodes, opened: Set[int], new: Nodes) -> set[int]:
    """Returns the nodes of a new tree with the same paths as the old tree's open nodes."""
    places: dict[int, int | None] = {ROOT: ROOT}
    names: dict[int, dict[Step, int]] = {}

    def place(node: int) -> int | None:
        if node not in places:
            parent = place(old.parent(node))
            if parent is None:
                places[node] = None
            else:
                if parent not in names:
                    names[parent] = {new.tree.steps[c]: c for c in new.children(parent)}
                places[node] = names[parent].get(old.tree.steps[node])
        return places[node]

    found = {place(node) for node in sorted(opened)}
    return {node for node in found if node is not None}


TREE: Final = nodes_view("Tree", "4", TreeView)
