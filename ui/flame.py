"""An icicle graph of the call tree: the root on top, each function as wide as its weight."""

import bisect
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from rich.cells import cell_len
from textual.binding import BindingType

from tracelloc.model.codefiles import base_name
from tracelloc.show.presentation.profile import Metric
from tracelloc.text import format_percent, format_size, signed_size
from tracelloc.ui import nodes as calls
from tracelloc.ui.lineview import Piece, bindings
from tracelloc.ui.tableview import arrow, crop, fit

EDGE: Final = "▏"  # Left edge of each box, which separates neighbours even without colours
_SMALL: Final = "·"  # Stands for functions that are narrower than a cell
# Colours of boxes, under white letters.
_COLOURS: Final = {
    "module": ("#b3541e", "#8a6d1a", "#2f6f4f", "#2b5f86", "#6a4c93", "#8c3b5e"),
    "darker": ("#8f4318", "#6e5714", "#25583f", "#224c6b", "#543c75", "#702f4b"),
    "growth": ("#2b5f86", "#4a4a4a", "#a65d2e", "#b02a2a"),
}
_BOX_CLASSES: Final = {
    f"flame--{kind}-{n}": colour
    for kind, colours in _COLOURS.items()
    for n, colour in enumerate(colours)
}
_BOX_CSS: Final = "\n".join(
    f"& .{name} {{ background: {colour}; color: #ffffff; }}"
    for name, colour in _BOX_CLASSES.items()
)


class FlameView(calls.NodesView):
    """The widget of the icicle graph. Arrow keys walk, Enter zooms, Esc goes back."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *_BOX_CLASSES, "flame--above", "flame--match", "flame--cursor",
    }  # fmt: skip
    DEFAULT_CSS = f"""
    FlameView {{
        {_BOX_CSS}
        & .flame--cursor {{
            background: $background; color: $foreground; text-style: bold reverse;
        }}
        & .flame--match {{ text-style: bold underline; }}
        & .flame--above {{ background: $surface; color: $text-muted; }}
    }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("flame")]
    footer_lines = 2
    row_cursor = False

    colouring = "module"  # What the colour of a box says: that, or `growth`
    zoomed = calls.ROOT  # The node that takes the whole width
    _selected = calls.ROOT
    _levels: Sequence[calls.Level] = ()

    # Data.

    def _take(self, nodes: calls.Nodes) -> None:
        same = self._data.inverted == nodes.inverted
        paths = [self._data.path(node) if same else () for node in (self.zoomed, self._selected)]
        self._data = nodes
        self.zoomed, self._selected = map(nodes.nearest, paths)
        self.rows_changed()

    @property
    def selected(self) -> int:
        return self._selected

    def rows_changed(self) -> None:
        self._levels = calls.lay_out(self._data, self.zoomed, max(self.width, 1))
        # Moves the cursor up to the nearest node that has a box.
        node = self._selected
        while node != calls.ROOT and self._box(node) is None:
            node = self._data.parent(node)
        self._selected = node
        self.cursor = int(self._data.tree.depth[node])
        super().rows_changed()

    def _box(self, node: int) -> calls.Box | None:
        depth = int(self._data.tree.depth[node])
        if depth >= len(self._levels):
            return None
        return next((box for box in self._levels[depth].boxes if box.node == node), None)

    def row_count(self) -> int:
        return len(self._levels) if self._data.weight(calls.ROOT) else 0

    # Drawing.

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """Returns the boxes of one depth. The cursor is on a box, not on a line."""
        level = self._levels[row]
        at = 0
        for left, end, node in sorted(
            [(box.left, box.end, box.node) for box in level.boxes]
            + [(left, end, -1) for left, end in level.small]
        ):
            if left > at:
                yield " " * (left - at), None
            if node < 0:
                yield _SMALL * (end - left), "lines--dim"
            else:
                yield self._label(node, end - left), self._style(node, row)
            at = end

    def _label(self, node: int, width: int) -> str:
        found = "*" if node in self._data.matches else ""
        if width < 4:
            # Too narrow for a name, but a match is still highlighted.
            return (EDGE + found).ljust(width)[:width]
        nodes = self._data
        name = f"{EDGE}{found}{nodes.tree.steps[node].name}"
        share, figure = format_percent(nodes.share(node)), nodes.figure(nodes.weight(node))
        choices = f"{name}  {share}, {figure}", f"{name}  {share}"
        return fit(next((text for text in choices if cell_len(text) <= width), name), width)

    def _style(self, node: int, row: int) -> str:
        style = self._colour(node, row)
        if node in self._data.matches:
            style = f"{style} flame--match"
        elif self._data.is_searched:
            style = "flame--above"
        if node == self._selected and self.has_focus:
            return f"{style} flame--cursor"
        return style

    def _colour(self, node: int, row: int) -> str:
        tree = self._data.tree
        if row < int(tree.depth[self.zoomed]):
            return "flame--above"
        if self.colouring == "growth":
            growth, size = (int(tree.totals[each][node]) for each in (Metric.GROWTH, Metric.BYTES))
            return f"flame--growth-{calls.growth_colour(growth, size)}"
        step = tree.steps[node]
        shade = "darker" if calls.is_darker(step.name) else "module"
        return f"flame--{shade}-{calls.module_colour(step.module, len(_COLOURS['module']))}"

    def fixed_line(self, line: int, width: int) -> Iterable[Piece]:
        nodes = self._data
        node = self._selected
        step = nodes.tree.steps[node]
        if line == -1:
            module = f"  {base_name(step.module)}" if step.module else ""
            yield crop(f" {step.name}{module}", width), None
            return
        totals = nodes.tree.totals
        growth = int(totals[Metric.GROWTH][node])
        parts = [
            f" {nodes.about}{format_size(int(totals[Metric.BYTES][node]))}",
            format_percent(nodes.share(node)),
            f"{nodes.about}{int(totals[Metric.BLOCKS][node]):,} blocks",
            f"{signed_size(growth)}/min {arrow(growth)}",
            *["inverted"][: nodes.inverted],
            f"colors: {self.colouring}",
        ]
        if nodes.metric.figure.of_freed:
            # The share above refers to this figure.
            parts.insert(1, f"{nodes.metric.value} {nodes.figure(nodes.weight(node))}")
        if nodes.found:
            yield nodes.found, "lines--match"
        yield crop("  ".join(parts), width - len(nodes.found)), "lines--header"

    # Walking.

    def select(self, node: int) -> None:
        self._selected = node
        self.move_to(int(self._data.tree.depth[node]))

    def action_cursor(self, step: int) -> None:
        if step < 0:
            self.select(self._data.parent(self._selected))
            return
        depth = int(self._data.tree.depth[self._selected])
        if depth < int(self._data.tree.depth[self.zoomed]):
            # Above the zoomed node there is a single path.
            self.select(self._levels[depth + 1].boxes[0].node)
            return
        for child in self._data.children(self._selected)[:1]:
            if self._box(child) is not None:
                self.select(child)

    def action_page(self, step: int) -> None:
        for _ in range(max(1, self.page_rows // 2)):
            self.action_cursor(step)

    def action_edge(self, step: int) -> None:
        if step < 0:
            self.select(calls.ROOT)
            return
        before = -1
        while before != self._selected:
            before = self._selected
            self.action_cursor(1)

    def action_side(self, step: int) -> None:
        if self.cursor >= len(self._levels):
            return
        boxes = self._levels[self.cursor].boxes
        at = next((n for n, box in enumerate(boxes) if box.node == self._selected), None)
        if at is not None and 0 <= at + step < len(boxes):
            self.select(boxes[at + step].node)

    def clicked(self, row: int, x: int) -> None:
        boxes = self._levels[row].boxes
        at = bisect.bisect_right([box.left for box in boxes], x) - 1
        if at >= 0 and x < boxes[at].end:
            self.select(boxes[at].node)

    def chosen(self) -> None:
        """Zooms in; if that changes nothing, opens the stack."""
        if self._selected == self.zoomed or not self._data.children(self._selected):
            self.action_open()
        else:
            self.zoom(self._selected)

    def zoom(self, node: int) -> None:
        self.zoomed = node
        self.rows_changed()
        self.show_cursor()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "zoom_out":
            return self.zoomed != calls.ROOT
        return super().check_action(action, parameters)

    def action_zoom_out(self) -> None:
        self.zoom(self._data.parent(self.zoomed))

    def action_colouring(self) -> None:
        self.colouring = "module" if self.colouring == "growth" else "growth"
        self.refresh()


FLAME: Final = calls.nodes_view("Flame", "3", FlameView, "flamegraph icicle")
