"""Flame graphs: one SVG picture, interactive in a browser, and one HTML page.

In the picture, callers are above callees. Each frame has a tooltip; in a browser a click zooms, and
``/`` searches. Frames too narrow to be visible at full width are omitted and counted.

Both are of a tree in columns: children follow their parents, and the root has number 0. Names,
files and places are indices into lists, so that each is stored once.

The page is self-contained: it needs no network and no other file. Names enter it in one place, as
JSON that can't close its enclosing element; the page's script uses them as text only. As a second
defense, the page's Content-Security-Policy allows only this script, by its hash, and no requests.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import is_c_library
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.show.presentation import calltree
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.presentation.profile import FigureUnit, Metric, Profile, Sample
from tracelloc.show.presentation.suspects import NamedSuspect, headline, sentences
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_size,
    format_time,
    plural,
    printable,
)

_NOTHING: Final = -1
_MOST_SUSPECTS: Final = 20  # Suspects listed above the graph


@dataclass(frozen=True, slots=True)
class Width:
    """A figure that the widths of frames can show; never negative."""

    key: str  # Identifies the figure in the page's data
    short: str  # Label of a button
    name: str  # Name for people
    unit: FigureUnit
    weight: Callable[[Sample], int]


def _change(sign: int, sample: Sample) -> int:
    return max(0, sign * sample.weight(Metric.BYTES))


_DIFFERENCE: Final = (
    Width("growth", "More", "more than before", FigureUnit.BYTES, partial(_change, 1)),
    Width("less", "Less", "less than before", FigureUnit.BYTES, partial(_change, -1)),
)


@dataclass(frozen=True, slots=True)
class FlameTree:
    """Merged stacks with figures per node. Indices into names, modules, places; -1: none."""

    merged: calltree.Merged
    widths: Sequence[Width]
    own: Sequence[I64]  # Figures of the stacks that end in a node, per width and node
    # Bytes per minute, or bytes changed in a difference, of the stacks that end in a node.
    growth: I64
    names: Sequence[str]
    modules: Sequence[str]
    places: Sequence[str]
    name: Sequence[int]  # Per node, an index into `names`
    module: Sequence[int]  # Per node, an index into `modules`
    place: Sequence[int]  # `file:line` of the call; only the file if lines differ


def _numbered(texts: Iterable[str | None]) -> tuple[list[str], list[int]]:
    known: dict[str, int] = {}
    numbers = [known.setdefault(text, len(known)) if text else _NOTHING for text in texts]
    return list(known), numbers


def _widths(profile: Profile, metric: Metric) -> Iterator[Width]:
    """Yields the figures to choose widths from, the requested metric included."""
    for each in Metric:
        if each is Metric.GROWTH and profile.is_difference:
            continue
        if each is metric or profile.shows(each):
            after = partial(_after, each)
            yield Width(each.value, each.value.capitalize(), each.noun, each.unit, after)
        if each is Metric.BYTES and profile.is_difference:
            yield from _DIFFERENCE


def _after(metric: Metric, sample: Sample) -> int:
    return max(0, sample.after(metric))


def flame_tree(profile: Profile, metric: Metric) -> FlameTree:
    """Merges stacks by the names and files of their shown frames, below the root module."""
    merger = calltree.Merger(calltree.Step("all", None))
    ends = np.empty(len(profile.samples), np.int64)
    frames: dict[int, Frame] = {}
    files: dict[int, str | None] = {}
    for row, sample in enumerate(profile.samples):
        shown = list(calltree.shown_frames(sample.stack))
        path: list[tuple[str, str | None]] = [(name, frame.module) for name, frame in shown]
        path += reversed(calltree.outer_steps(sample.stack, sample.stat.index))
        path.reverse()
        nodes = merger.add(path)
        ends[row] = nodes[-1]
        nodes.reverse()
        for node, (_, frame) in zip(nodes, shown, strict=False):
            first = frames.setdefault(node, frame)
            if first is not frame and (first.file, first.line) != (frame.file, frame.line):
                same = files.get(node, first.file) == first.file == frame.file
                files[node] = first.file if same else None
    merged = merger.merged()

    def own(weight: Callable[[Sample], int]) -> I64:
        return merged.own_of(ends, np.array(list(map(weight, profile.samples)), np.int64))

    widths = tuple(_widths(profile, metric))
    growth = Metric.BYTES if profile.is_difference else Metric.GROWTH
    names, name = _numbered(step.name for step in merged.steps)
    modules, module = _numbered(step.module for step in merged.steps)
    places, place = _numbered(
        files[node] if node in files else _place(frames.get(node)) for node in range(len(merged))
    )
    columns = [own(width.weight) for width in widths]
    growths = own(lambda sample: sample.weight(growth))
    return FlameTree(merged, widths, columns, growths, names, modules, places, name, module, place)


def _place(frame: Frame | None) -> str | None:
    if frame is None or not frame.file or not frame.line:
        return None if frame is None else frame.file
    return f"{frame.file}:{frame.line}"


def elapsed(profile: Profile) -> str:
    """Formats the traced time, or of a difference the time between profiles; may be empty."""
    seconds = round(profile.elapsed_ns / NS_PER_S)
    if not seconds:
        return ""
    return f"{format_duration(seconds)} {'apart' if profile.is_difference else 'traced'}"


def _suspect(named: NamedSuspect, profile: Profile) -> dict[str, Any]:
    """Returns a suspect: ``path`` from the root to its frame; ``search`` finds a group's frame."""
    path = [printable(name) for name, _ in calltree.steps(named.stack, named.suspect.stack)]
    about = about_of(profile.sample_bytes)
    shared = None if named.shared is None else printable(frame_name(named.shared.frame))
    return {
        "name": shared or path[-1],
        "headline": headline(named.judgement, named.now_ns, about=about),
        "why": list(sentences(named)), "search": shared, "path": path,
    }  # fmt: skip


def page_data(profile: Profile, metric: Metric, refresh_s: float | None = None) -> dict[str, Any]:
    """Returns the data of the HTML page; ``refresh_s``: the interval of its updates.

    A node has a number of a symbol and how far before it its parent is. Figures are given for nodes
    where stacks end, and for these how far each is from the previous one.
    """
    tree = flame_tree(profile, metric)
    ends = np.flatnonzero(np.any([*tree.own, tree.growth], axis=0))
    symbols, symbol = np.unique([tree.name, tree.module, tree.place], axis=1, return_inverse=True)
    return {
        "title": printable(profile.target.command) or "?", "pid": profile.target.pid,
        "when": format_time(profile.time_s), "elapsed": elapsed(profile),
        "sampled": profile.sample_bytes is not None, "difference": profile.is_difference,
        "notes": [printable(note) for note in profile.notes],
        "suspects": [_suspect(named, profile) for named in profile.suspects[:_MOST_SUSPECTS]],
        "refresh": refresh_s, "metric": metric.value,
        "metrics": [
            {"key": w.key, "short": w.short, "name": w.name, "unit": w.unit.value}
            | {"own": column[ends].tolist()}
            for w, column in zip(tree.widths, tree.own, strict=True)
        ],
        "ends": np.diff(ends, prepend=0).tolist(), "growth": tree.growth[ends].tolist(),
        "growthUnit": "bytes" if profile.is_difference else "bytes/min",
        "names": list(map(printable, tree.names)), "modules": list(map(printable, tree.modules)),
        "places": list(map(printable, tree.places)),
        "up": (np.arange(len(symbol)) - tree.merged.parent).tolist(), "symbol": symbol.tolist(),
        **dict(zip(("name", "module", "place"), symbols.tolist(), strict=True)),
    }  # fmt: skip


@cache
def asset(name: str) -> str:
    """Returns the text of a file in the folder ``web``."""
    return resources.files("tracelloc.show.export").joinpath("web", name).read_text("utf-8")


_WIDTH: Final = 1180
_LEFT: Final = 10
_TOP: Final = 58
_ROW: Final = 18
_BOTTOM: Final = 26
_ADVANCE: Final = 6.95  # Pixels per character of the font, rounded up a little
_NARROWEST: Final = 0.8  # Least width in pixels of a frame that is drawn
_HUES: Final = (24, 206, 152, 268, 338, 46, 182, 96)


@dataclass(frozen=True, slots=True)
class _Box:
    node: int
    start: float
    width: float
    depth: int


def write_svg(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """Yields the SVG file in pieces."""
    tree = flame_tree(profile, metric)
    at = next(n for n, width in enumerate(tree.widths) if width.key == metric.value)
    columns = tree.merged.totals_of(tree.own[at])
    totals = columns.tolist()
    growth = tree.merged.totals_of(tree.growth).tolist()
    boxes, hidden = _laid_out(tree, columns)
    height = _TOP + _ROW * (1 + max(box.depth for box in boxes)) + _BOTTOM
    unit = tree.widths[at].unit
    colours = _Colours(tree, totals, growth if profile.is_difference else None)
    yield _head(profile, f"{_figure(totals[0], unit)} {tree.widths[at].name}", height).encode()
    names, modules = list(map(printable, tree.names)), list(map(printable, tree.modules))
    for box in boxes:
        node = box.node
        module = tree.module[node]
        lines = [names[tree.name[node]], modules[module] if module >= 0 else ""]
        share = 100 * totals[node] / totals[0] if totals[0] else 100.0
        lines.append(f"{_figure(totals[node], unit)}, {share:.2f} %")
        if profile.is_difference:
            lines.append(f"{'+' if growth[node] > 0 else ''}{format_size(growth[node])}")
        yield _frame(box, "\n".join(filter(None, lines)), lines[0], colours.color_of(node)).encode()
    yield _tail(profile, hidden, height).encode()


def _laid_out(tree: FlameTree, totals: I64) -> tuple[list[_Box], int]:
    shares = totals / max(int(totals[0]), 1)
    wide = np.flatnonzero(shares[1:] * _WIDTH >= _NARROWEST) + 1
    # The widest child comes first, so the ones that are too narrow come last.
    order = wide[np.lexsort((wide, -totals[wide]))]
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in zip(order.tolist(), tree.merged.parent[order].tolist(), strict=True):
        children[parent].append(node)
    boxes: list[_Box] = []
    pending = [_Box(0, 0.0, 1.0, 0)]
    while pending:
        box = pending.pop()
        boxes.append(box)
        start = box.start
        for child in children[box.node]:
            width = float(shares[child])
            pending.append(_Box(child, start, width, box.depth + 1))
            start += width
    there = int(np.count_nonzero(totals[1:] > 0))
    return boxes, there + 1 - len(boxes)


class _Colours:
    def __init__(self, tree: FlameTree, totals: list[int], growth: list[int] | None) -> None:
        self._tree = tree
        self._growth = growth
        self._most = 1
        if growth is not None:
            most = [abs(g) for g, t in zip(growth, totals, strict=True) if t < 0.95 * totals[0]]
            self._most = max(most, default=0) or abs(growth[0]) or 1
        weights = np.zeros(len(tree.modules) + 1, np.float64)
        np.add.at(weights, np.array(tree.module), np.array(totals, np.float64))
        ranked = np.argsort(-weights[:-1], kind="stable").tolist()
        own = [module for module in ranked if not is_c_library(tree.modules[module])]
        self._hues = dict(zip(own, _HUES, strict=False))

    def color_of(self, node: int) -> str:
        if self._growth is not None:
            ratio = self._growth[node] / self._most
            part = min(1.0, abs(ratio)) ** 0.5
            if part < 0.02:
                return "hsl(220,8%,88%)"
            return f"hsl({10 if ratio > 0 else 212},{30 + 55 * part:.0f}%,{88 - 24 * part:.0f}%)"
        hue = self._hues.get(self._tree.module[node])
        shade = zlib.crc32(self._tree.names[self._tree.name[node]].encode()) % 9
        if hue is None:
            return f"hsl(220,6%,{84 - shade}%)"
        return f"hsl({hue + shade - 4},74%,{78 - shade}%)"


def _figure(value: int, unit: FigureUnit) -> str:
    return unit.format(value) + ("/min" if unit is FigureUnit.RATE else "")


def _head(profile: Profile, total: str, height: int) -> str:
    target = profile.target
    title = f"{printable(target.command)} (process {target.pid})"
    about = about_of(profile.sample_bytes)
    subtitle = ", ".join(filter(None, [f"{about}{total}", elapsed(profile)]))
    width = _WIDTH + 2 * _LEFT
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" data-width="{_WIDTH}" data-left="{_LEFT}" '
        f'data-advance="{_ADVANCE}" role="img">\n'
        f"<title>{escape(title)}: heap</title>\n<style>{asset('picture.css')}</style>\n"
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>\n'
        f'<text class="soft" x="{_LEFT}" y="44">{escape(subtitle)}</text>\n'
        f'<text class="button" id="reset" x="{width - 160}" y="24">Reset zoom</text>\n'
        f'<text class="button" id="search" x="{width - 70}" y="24">Search /</text>\n'
        f'<text class="soft" id="result" x="{width - 160}" y="44"></text>\n'
        '<g id="frames">\n'
    )


def _frame(box: _Box, tip: str, name: str, colour: str) -> str:
    x, width = _LEFT + box.start * _WIDTH, box.width * _WIDTH
    y = _TOP + box.depth * _ROW
    room = int((width - 8) / _ADVANCE)
    label = "" if room < 3 else name if len(name) <= room else f"{name[: room - 1]}…"
    text = f'<text x="{x + 4:.2f}" y="{y + 12.5}">{escape(label)}</text>' if label else ""
    return (
        f'<g data-x="{box.start:.9g}" data-w="{box.width:.9g}" data-d="{box.depth}" '
        f"data-name={quoteattr(name)}><title>{escape(tip)}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{max(0.3, width - (width > 3)):.2f}" '
        f'height="{_ROW - 1}" rx="1.5" fill="{colour}"/>'
        f"{text}</g>\n"
    )


def _tail(profile: Profile, hidden: int, height: int) -> str:
    notes = [printable(note) for note in profile.notes]
    if hidden:
        notes.insert(0, f"{plural(hidden, 'frame')} too narrow to draw")
    text = escape("; ".join(notes))
    # No text from the target enters the script, which reads it from the elements.
    script = asset("picture.js")
    assert "]]>" not in script
    return (
        f'</g>\n<text class="soft" x="{_LEFT}" y="{height - 9}">{text}</text>\n'
        f"<script><![CDATA[{script}]]></script>\n</svg>\n"
    )


_MOST_PLAIN_BYTES: Final = 1 << 20  # JSON that is embedded as it is
_SCRIPTS: Final = ("model.js", "draw.js", "page.js")
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def write_html(profile: Profile, metric: Metric, refresh_s: float | None = None) -> Iterator[bytes]:
    """Yields the HTML file; ``refresh_s``: how often the page requests ``flamegraph.json``."""
    script = "".join(map(asset, _SCRIPTS))
    parts = {
        "POLICY": policy(script, live=refresh_s is not None),
        "TITLE": html.escape(f"{printable(profile.target.command)} – heap"),
        "STYLE": asset("style.css"),
        "DATA": embedded(page_data(profile, metric, refresh_s)),
        "SCRIPT": script,
    }
    # One pass: inserted text is never searched for further placeholders.
    yield re.sub("@([A-Z]+)@", lambda place: parts[place[1]], asset("page.html")).encode()


def embedded(data: dict[str, Any]) -> str:
    """Formats JSON that is safe between any two tags; if there is much, zlib's, as base64."""
    text = json.dumps(data, separators=(",", ":"))
    if len(text) > _MOST_PLAIN_BYTES:
        return base64.b64encode(zlib.compress(text.encode())).decode()
    return text.translate(_ESCAPES)


def policy(script: str, *, live: bool) -> str:
    """Returns the Content-Security-Policy: this script, any style, nothing from elsewhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )
