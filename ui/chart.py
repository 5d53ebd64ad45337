"""The view of memory over time, stacked by the largest functions or call stacks."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import ClassVar, Final

import numpy as np
from textual.binding import Binding, BindingType

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.figures import I64
from tracelloc.text import about_of, format_percent, format_size
from tracelloc.ui.functions import COUNTING, FUNCTIONS, FunctionKey, Functions
from tracelloc.ui.lineview import COMPUTING, LineView, Piece
from tracelloc.ui.plot import Canvas, Drawing, draw_areas, nice_ceiling, styled_runs
from tracelloc.ui.tableview import clean, crop, fit
from tracelloc.ui.view import Gaps, Settings, TraceSource, View, ViewSelection, are_in_gaps

_LAYERS: Final = 6  # Most functions or stacks that get their own layer
# Fill characters that distinguish layers without colors; the last one means "all others".
_MARKS: Final = "█▓▒░╱╲·"
_LEAST_LINES: Final = 5  # Height below which no chart is drawn, in lines


@dataclass(frozen=True, slots=True)
class Layer:
    """Live bytes of one function, or one stack, over time."""

    key: Hashable | None  # The stack's index, or a `FunctionKey`; None for all others
    name: str  # The function or the stack's label
    bytes: I64  # Live bytes at each of the chart's times; the last one is now


@dataclass(frozen=True, slots=True)
class ChartContent:
    """The layers of the chart, from the bottom up, in descending order of their peaks."""

    layers: Sequence[Layer] = ()
    times_ns: Sequence[int] = ()  # Times of the layers' values, CLOCK_MONOTONIC
    what: str = ""  # What a layer stands for, in words
    about: str = ""  # The prefix of estimates, `~` or nothing
    empty: str = COMPUTING  # Text that is shown if there is no layer
    gaps: Gaps = ()  # Times without snapshots, in which nothing is drawn
    is_recorded: bool = False


def _held(selection: ViewSelection) -> tuple[list[int], I64]:
    snapshot = selection.snapshot
    times, held = snapshot.history.held()
    table = np.zeros((len(times) + 1, len(snapshot.totals)), np.int64)
    known = min(held.shape[1], table.shape[1])
    table[:-1, :known] = held[:, :known]
    table[-1] = snapshot.totals.live_bytes
    return [*times, max(snapshot.now_ns, times[-1] + 1)], table


def chart_content(_source: TraceSource) -> Callable[[ViewSelection], ChartContent]:
    """Returns a function that computes layers. Limits select stacks: past blocks are unknown."""
    functions = Functions()

    def content(selection: ViewSelection) -> ChartContent:
        settings, stacks = selection.settings, selection.stacks
        by_stack = settings.charts_stacks
        times, held = _held(selection)
        if not settings.narrows_stacks and settings.all_limits.is_open:
            # Stacks without live bytes are included: they had some earlier.
            stacks = np.flatnonzero(held.any(axis=0))
        if not len(stacks):
            return ChartContent(empty=selection.why_empty)
        about = about_of(selection.snapshot.sample_bytes)
        charted = held[:, stacks]
        order = stacks[np.argsort(-charted.max(axis=0), kind="stable")]
        layers = []
        if by_stack:
            for stack in order[:_LAYERS].tolist():
                name = selection.names.label(selection.snapshot, stack)
                layers.append(Layer(stack, name, held[:, stack]))
        else:
            columns = functions.columns(replace(selection, unsearched=order))
            steps = functions.steps
            sums = np.array([columns.own(row, len(steps)) for row in held[:, columns.stacks]])
            peaks = sums.max(axis=0)
            peaks[functions.number(COUNTING)] = 0  # among all others until they are counted
            for number in np.argsort(-peaks, kind="stable")[:_LAYERS].tolist():
                if peaks[number]:
                    step = steps[number]
                    layers.append(Layer(FunctionKey(step), clean(step.name), sums[:, number]))
        rest = charted.sum(axis=1) - sum(layer.bytes for layer in layers)
        if rest.any():
            layers.append(Layer(None, "all others", rest))
        line, what = selection.line, "call stacks" if by_stack else "functions"
        gaps = () if line is None else line.gaps
        return ChartContent(layers, times, what, about, gaps=gaps, is_recorded=line is not None)

    return content


def draw_layers(content: ChartContent, width: int, height: int) -> Drawing:
    """Draws a chart of ``width`` by ``height`` cells, including the time axis at the bottom."""
    first_ns, last_ns = content.times_ns[0], content.times_ns[-1]
    canvas = Canvas(width, height, first_ns, last_ns, fits=content.is_recorded)
    if not canvas.has_room:
        return canvas.rows
    edges = canvas.edges_ns()
    values = [np.interp(edges, content.times_ns, layer.bytes) for layer in content.layers]
    tops = np.cumsum(np.maximum(values, 0), axis=0)
    highest = nice_ceiling(float(tops[-1].max()), canvas.lines)
    canvas.draw_axes(highest)
    tops[:, are_in_gaps(content.gaps, edges)] = 0
    tops[:, canvas.used :] = 0
    layers = [(_mark(content, n), _style(n)) for n in range(len(tops))]
    draw_areas(canvas, tops / highest * canvas.lines, layers)
    return canvas.rows


def _mark(content: ChartContent, number: int) -> str:
    return _MARKS[-1] if content.layers[number].key is None else _MARKS[number]


def _style(number: int) -> str:
    return f"chart--{number}"


class ChartView(LineView[ChartContent]):
    """The widget of the chart, with one row per layer below, the bottom layer first."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--axis", *(_style(number) for number in range(_LAYERS + 1)),
    }  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("C", "app.ask('toggle_chart')", "Functions/stacks", tooltip="Functions, or stacks")
    ]

    _content = ChartContent()
    _drawing: Sequence[Sequence[tuple[str, str]]] = ()

    def show(self, content: ChartContent, *, at_once: bool = False) -> None:
        key = self.key
        self._content = content
        keys = [layer.key for layer in content.layers]
        if key in keys:
            self.cursor = keys.index(key)
        self.rows_changed()
        if self.key != key:
            self.moved()

    @property
    def key(self) -> Hashable | None:
        layers = self._content.layers
        return layers[self.cursor].key if self.cursor < len(layers) else None

    def rows_changed(self) -> None:
        room = self.size.height - len(self._content.layers) - 1
        is_drawn = room >= _LEAST_LINES and len(self._content.layers) > 0
        self._drawing = draw_layers(self._content, self.width, room) if is_drawn else []
        self.header_lines = len(self._drawing) + 1
        super().rows_changed()

    def row_count(self) -> int:
        return len(self._content.layers)

    def empty_text(self) -> str:
        return self._content.empty

    def fixed_line(self, line: int, width: int) -> Iterable[Piece]:
        if line < len(self._drawing):
            return [(text, style or None) for text, style in styled_runs(self._drawing[line])]
        what = f"live bytes of {self._content.what} (C)" if self._content.what else ""
        title = f"{'live':>13}  {'share':>6}  {'peak':>11}  {what}"
        return [(crop(title, width), "lines--header")] if what else []

    def row(self, row: int, width: int) -> Iterable[Piece]:
        content, layer = self._content, self._content.layers[row]
        whole = max(1, sum(int(each.bytes[-1]) for each in content.layers))
        live, peak = int(layer.bytes[-1]), int(layer.bytes.max())
        yield "›" if row == self.cursor and self.is_active else " ", None
        yield _mark(content, row) * 2, _style(row)
        yield fit(content.about + format_size(live), 10, to_right=True), None
        yield "  " + fit(format_percent(live / whole), 6, to_right=True), None
        yield "  " + fit(content.about + format_size(peak), 11, to_right=True), None
        yield "  " + fit(layer.name, max(1, width - 34)), None


def _opened(key: Hashable, settings: Settings) -> int | Settings | None:
    if isinstance(key, FunctionKey):
        return replace(settings, view=FUNCTIONS, function=key.step)
    return key if isinstance(key, int) else None


CHART: Final = View(
    "Chart", "C", chart_content, ChartView, choose=_opened, enter_action="Open",
    others="plot graph history",
)  # fmt: skip
