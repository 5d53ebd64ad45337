"""Drawings of live bytes, resident and kept memory over the whole traced time."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import F64, HeapPoints
from tracelloc.model.verdicts import Verdict
from tracelloc.show.presentation.suspects import suspects_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S, format_duration

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_FAR: Final = 4
_NEAR: Final = 0.5  # Free part of a limit below which the limit has a line
_NOTABLE_SHARE: Final = 0.1  # Part of resident memory from which kept memory has a curve
LABELS: Final = 9  # Width of the labels at the left, including the axis, in cells
BEHIND: Final = 6  # Width of the curves' names at the right, in cells


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a plot."""

    name: str  # Name beside the curve
    time_ns: Sequence[int] | npt.NDArray[np.int64]  # Times of the values, CLOCK_MONOTONIC
    values: Sequence[int] | npt.NDArray[Any]  # Values in bytes; negative ones are unknown
    style: str  # Component class of the curve
    is_whole: bool = False  # Whether the axis reaches its highest value, however high
    is_part: bool = False  # Whether it is a part of the area of the first curve


_APART: Final = 18  # Least columns from one time on the axis to the next
_FACTORS: Final = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40)
# Times that a column may stand for; also multiples of the last one.
_STEPS_S: Final = tuple(factor * unit for unit in (1, 60, 3600) for factor in _FACTORS)
# Times between those on the axis.
_ROUND_S: Final = tuple(
    factor * unit for unit in (1, 60, 3600) for factor in (1, 2, 5, 10, 15, 20, 30)
)  # fmt: skip


def _round_up(value: float, steps: Sequence[float]) -> float:
    last = steps[-1]
    return next((step for step in steps if value <= step), math.ceil(value / last) * last)


def column_ns(length_ns: int, columns: int, *, fits: bool) -> float:
    """Returns the time that a column stands for.

    A column's time stays constant while time passes, until all columns are used, so that only
    the last column changes. ``fits``: all columns are used.
    """
    exact_ns = length_ns / max(1, columns)
    return exact_ns if fits else _round_up(exact_ns / NS_PER_S, _STEPS_S) * NS_PER_S


Drawing = list[list[tuple[str, str]]]  # Rows of (character, name of the style)


def nice_ceiling(value: float, lines: int) -> float:
    """Returns the height of a plot up to ``value`` or more, with a round size for each line."""
    value = max(value, lines)
    unit = 1024.0 ** int(math.log(value, 1024))
    scales, factors = (0.01, 0.1, 1, 10, 100, 1000), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    sizes = (lines * factor * scale * unit for scale in scales for factor in factors)
    return next(size for size in sizes if value <= size and (unit > 1 or size % lines == 0))


def axis_label(value: float, top: float) -> str:
    """Formats a value for an axis, in the unit of its highest one: ``250 MiB``, ``0.5 GiB``."""
    power = min(int(math.log(max(top, 1), 1024) + 1e-9), len(_UNITS) - 1)
    # 1200 B are round, 1.172 KiB are not.
    power -= power > 0 and len(f"{top / 1024**power:.4g}") > 4
    return f"{value / 1024**power:.4g} {_UNITS[power]}"


def styled_runs(cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Joins neighboring cells of the same style into one text."""
    runs = groupby(cells, key=itemgetter(1))
    return [("".join(map(itemgetter(0), run)), style) for style, run in runs]


class Canvas:
    """The cells of a plot over time, with room for axes and the names of curves."""

    def __init__(
        self, width: int, height: int, start_ns: int, end_ns: int, *, fits: bool = False
    ) -> None:
        """``fits``: see ``column_ns``."""
        self.rows: Drawing = [[(" ", "")] * width for _ in range(height)]
        self.columns, self.lines = width - LABELS - BEHIND, height - 1  # Cells of the plot itself
        self.start_ns, self.end_ns = start_ns, max(end_ns, start_ns + NS_PER_S)
        length_ns = self.end_ns - start_ns
        # Time that a column stands for
        self.step_ns = column_ns(length_ns, self.columns, fits=fits)
        # Number of columns up to the end
        self.used = max(1, min(self.columns, math.ceil(length_ns / self.step_ns - 1e-9)))

    @property
    def has_room(self) -> bool:
        return self.columns >= 8 and self.lines >= 2

    def edges_ns(self) -> F64:
        return self.start_ns + np.arange(1.0, self.columns + 1.0) * self.step_ns

    def put(self, x: int, y: int, character: str, style: str, *, behind: bool = False) -> None:
        """Draws a character; ``behind``: only if the cell is empty."""
        inside = 0 <= y < len(self.rows) and 0 <= x < len(self.rows[y])
        if inside and not (behind and self.rows[y][x][0] != " "):
            self.rows[y][x] = (character, style)

    def write(self, x: int, y: int, text: str, style: str) -> None:
        for offset, character in enumerate(text):
            self.put(x + offset, y, character, style)

    def draw_axes(self, top: float, clock: Callable[[int], str] | None = None) -> None:
        """Draws the axes; values belong to upper edges. ``clock``: None: relative to now."""
        for y in range(self.lines):
            if (self.lines - y) % 2 == 0:
                value = top * (self.lines - y) / self.lines
                self.write(0, y, axis_label(value, top).rjust(LABELS - 1), "plot--axis")
                self.put(LABELS - 1, y, "┤", "plot--axis")
            else:
                self.put(LABELS - 1, y, "│", "plot--axis")
        self.write(0, self.lines, "0┼".rjust(LABELS) + "─" * self.used, "plot--axis")
        for x, words in self._ticks(clock):
            self.write(LABELS + x, self.lines, f"┬ {words} ", "plot--axis")
        end = " now" if clock is None else " end"
        self.write(LABELS + min(self.used, self.columns - 4), self.lines, end, "plot--axis")

    def _ticks(self, clock: Callable[[int], str] | None) -> Iterator[tuple[int, str]]:
        """Yields (column, words) of the time axis: round times before now, or times of day."""
        if clock is not None:
            ticks = max(1, self.columns // _APART)
            for tick in range(ticks):
                x = round(self.columns * tick / ticks)
                yield x, clock(round(self.start_ns + x * self.step_ns))
            return
        every_ns = _round_up(_APART * self.step_ns / NS_PER_S, _ROUND_S) * NS_PER_S
        for tick in range(int(self.used * self.step_ns / every_ns), 0, -1):
            x = self.used - round(tick * every_ns / self.step_ns)
            if x >= 0:
                yield x, f"-{format_duration(tick * every_ns / NS_PER_S)}"


def _values_of(curve: Curve, canvas: Canvas) -> F64:
    values = np.full(canvas.columns, np.nan)
    if not len(curve.time_ns):
        return values
    times = np.asarray(curve.time_ns, np.int64)
    known = np.asarray(curve.values, np.float64)
    at = np.searchsorted(times, canvas.edges_ns(), side="right") - 1
    values[at >= 0] = known[at[at >= 0]]
    values[values < 0] = np.nan
    values[canvas.used :] = np.nan
    return values


def draw_plot(
    curves: Sequence[Curve], flags: Sequence[tuple[str, int]], start_ns: int, end_ns: int, *,
    width: int, height: int, clock: Callable[[int], str] | None = None,
) -> Drawing:  # fmt: skip
    """Draws a plot of ``width`` by ``height`` cells, including the time axis at the bottom.

    The first curve is an area, drawn in eighths of a cell to make slow growth visible, and curves
    that are parts of it have their colours there; the others are lines. Flags are dotted lines
    with their names on top.
    """
    canvas = Canvas(width, height, start_ns, end_ns, fits=clock is not None)
    if not canvas.has_room:
        return canvas.rows
    values = [_values_of(curve, canvas) for curve in curves]
    highest = [float(np.nanmax(each, initial=0)) for each in values]
    # A curve so high that the area would look flat is left out; an arrow points to it.
    far = _FAR * highest[0] or math.inf
    pairs = zip(curves, highest, strict=True)
    shown = [value for curve, value in pairs if curve.is_whole or value <= far]
    top = nice_ceiling(max(shown, default=1), canvas.lines)
    canvas.draw_axes(top, clock)
    heights = [np.nan_to_num(each, nan=-1.0) / top * canvas.lines for each in values]
    parts = [n for n, curve in enumerate(curves) if n and curve.is_part][::-1]
    areas = np.stack([heights[n] for n in (*parts, 0)])
    draw_areas(canvas, areas, [("", curves[n].style) for n in (*parts, 0)])
    names: dict[int, str] = {}
    for number, curve in enumerate(curves):
        if highest[number] > top:
            canvas.write(width - BEHIND + 1, 0, f"{curve.name} ↑"[: BEHIND - 1], curve.style)
            names[0] = curve.name
            continue
        if number and not curve.is_part:
            _draw_line(canvas, heights[number].tolist(), curve.style)
        if (last := float(heights[number][canvas.used - 1])) >= 0:
            # At the curve's end, on a line without another name.
            y, side = _row(last, canvas.lines), -1 if curve.is_part else 1
            rows = (row for row in (y, y - side, y + side) if 0 <= row < height - 1)
            for row in [row for row in rows if row not in names][:1]:
                names[row] = curve.name
                canvas.write(width - BEHIND + 1, row, curve.name, curve.style)
    for name, time_ns in flags:
        x = LABELS + min(int((time_ns - start_ns) // canvas.step_ns), canvas.used - 1)
        if x >= LABELS and time_ns <= canvas.end_ns:
            for y in range(canvas.lines):
                canvas.put(x, y, "┆", "plot--mark")
            left = x + 1 if x + 1 + len(name) <= width else x - len(name)
            canvas.write(left, 0, name, "plot--mark")
    return canvas.rows


def _row(height: float, plot_height: int) -> int:
    return min(plot_height - 1, max(0, plot_height - math.ceil(max(height, 0))))


def draw_areas(canvas: Canvas, tops: F64, layers: Sequence[tuple[str, str]]) -> None:
    """Draws layers, each (character, style), up to their tops in each column.

    With characters, to the nearest cell; without, in eighths of one: a layer's style on another's.
    """
    for x, column in enumerate(tops.T.tolist()):
        height, last = column[-1], len(column) - 1
        # A nonzero value must not look like zero.
        eighths = max(round(height * 8), 1 if height > 0 else 0)
        for row in range(min(math.ceil(height), canvas.lines)):
            y, middle = canvas.lines - 1 - row, row + 0.5
            if layers[0][0]:
                for mark, style in [layers[n] for n, top in enumerate(column) if top >= middle][:1]:
                    canvas.put(LABELS + x, y, mark, style)
                continue
            filled = min(8, eighths - 8 * row)
            inner = next((n for n, top in enumerate(column) if round(8 * (top - row)) > 0), last)
            part, style = round(8 * (column[inner] - row)), layers[inner][1]
            if filled == 8 and 0 < part < 8:
                outer = next(n for n, top in enumerate(column) if round(8 * (top - row)) > part)
                canvas.put(LABELS + x, y, _EIGHTHS[part], f"{style} {layers[outer][1]}")
            else:
                # A cell has no third colour for what lies above all layers.
                style = style if part >= filled else layers[last][1]
                canvas.put(LABELS + x, y, _EIGHTHS[filled], style)


def _draw_line(canvas: Canvas, heights: Sequence[float], style: str) -> None:
    before: int | None = None
    for x, height in enumerate(heights, LABELS):
        if height < 0:
            before = None
            continue
        y = _row(height, canvas.lines)
        if before is None or before == y:
            canvas.put(x, y, "─", style, behind=True)
        else:
            canvas.put(x, before, "╯" if y < before else "╮", style, behind=True)
            canvas.put(x, y, "╭" if y < before else "╰", style, behind=True)
            for between in range(min(y, before) + 1, max(y, before)):
                canvas.put(x, between, "│", style, behind=True)
        before = y


def curves_of(points: HeapPoints, snapshot: Snapshot) -> list[Curve]:
    """Returns the curves of live bytes and resident memory, and of others that matter."""
    # What other runtimes manage lies beside the heap of malloc.
    has_others = len(snapshot.runtimes) > 0
    has_objects = bool(points.object_bytes.any())
    heap = Curve("heap", points.time_ns, points.live_bytes, "plot--heap", is_part=has_objects)
    curves = [heap, Curve("RSS", points.time_ns, points.rss_bytes, "plot--rss", has_others)]
    if has_objects:
        both = points.live_bytes + points.object_bytes
        curves.insert(0, Curve("+obj", points.time_ns, both, "plot--objects"))
    most_kept = max(points.kept_bytes, default=0)
    if most_kept > 0 and most_kept >= _NOTABLE_SHARE * points.rss_bytes.max():
        curves.insert(-1, Curve("kept", points.time_ns, points.kept_bytes, "plot--kept"))
    leaking = (s for s in suspects_of(snapshot) if s.judgement.verdict is Verdict.LEAKING)
    leaks = [member.stack for each in leaking for member in each.members]
    if leaks:
        times, held = snapshot.history.series(np.array(leaks))
        now = int(snapshot.totals.live_bytes[leaks].sum())
        sizes = np.interp(points.time_ns, [*times, snapshot.now_ns], [*held, now])
        sizes[points.time_ns > snapshot.now_ns] = -1  # of a recording
        at = curves.index(heap) + 1
        curves.insert(at, Curve("leak", points.time_ns, sizes, "plot--leak", is_part=True))
    limit = None if snapshot.memory is None else snapshot.memory.limit
    if limit is not None and limit.free_bytes < _NEAR * limit.size_bytes:
        whole = np.full(len(points), limit.size_bytes)
        curves.append(Curve("limit", points.time_ns, whole, "plot--limit"))
    return curves
