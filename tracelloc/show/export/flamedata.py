"""A profile as a tree in columns, the data of flame graphs.

Children follow their parents; the root has number 0. Names, files and places are indices
into lists, so that each is stored once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.show.presentation.calltree import (
    Merged,
    Merger,
    Step,
    outer_steps,
    shown_frames,
    steps,
)
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.presentation.profile import FigureUnit, Metric, Profile, Sample
from tracelloc.show.presentation.suspects import NamedSuspect, headline, sentences
from tracelloc.text import NS_PER_S, about_of, format_duration, format_time, printable

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


_DIFFERENCE: Final = (
    Width(
        "growth",
        "More",
        "more than before",
        FigureUnit.BYTES,
        lambda s: max(0, s.weight(Metric.BYTES)),
    ),
    Width(
        "less",
        "Less",
        "less than before",
        FigureUnit.BYTES,
        lambda s: max(0, -s.weight(Metric.BYTES)),
    ),
)


@dataclass(frozen=True, slots=True)
class FlameTree:
    """Merged stacks with figures per node. Indices into names, modules, places; -1: none."""

    merged: Merged
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
    merger = Merger(Step("all", None))
    ends = np.empty(len(profile.samples), np.int64)
    frames: dict[int, Frame] = {}
    files: dict[int, str | None] = {}
    for row, sample in enumerate(profile.samples):
        shown = list(shown_frames(sample.stack))
        path: list[tuple[str, str | None]] = [(name, frame.module) for name, frame in shown]
        path += reversed(outer_steps(sample.stack, sample.stat.index))
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
    path = [printable(name) for name, _ in steps(named.stack, named.suspect.stack)]
    about = about_of(profile.sample_bytes)
    shared = None if named.shared is None else printable(frame_name(named.shared.frame))
    return {
        "name": shared or path[-1],
        "headline": headline(named.judgement, named.now_ns, about=about),
        "why": list(sentences(named)),
        "search": shared,
        "path": path,
    }


def page_data(profile: Profile, metric: Metric, refresh_s: float | None = None) -> dict[str, Any]:
    """Returns the data of the HTML page; ``refresh_s``: the interval of its updates.

    A node has a number of a symbol and how far before it its parent is. Figures are given for nodes
    where stacks end, and for these how far each is from the previous one.
    """
    tree = flame_tree(profile, metric)
    ends = np.flatnonzero(np.any([*tree.own, tree.growth], axis=0))
    symbols, symbol = np.unique([tree.name, tree.module, tree.place], axis=1, return_inverse=True)
    when = format_time(profile.time_s)
    return {
        "title": printable(profile.target.command) or "?",
        "pid": profile.target.pid,
        "when": when,
        "elapsed": elapsed(profile),
        "sampled": profile.sample_bytes is not None,
        "difference": profile.is_difference,
        "notes": [printable(note) for note in profile.notes],
        "suspects": [_suspect(named, profile) for named in profile.suspects[:_MOST_SUSPECTS]],
        "refresh": refresh_s,
        "metric": metric.value,
        "metrics": [
            {
                "key": w.key,
                "short": w.short,
                "name": w.name,
                "unit": w.unit.value,
                "own": column[ends].tolist(),
            }
            for w, column in zip(tree.widths, tree.own, strict=True)
        ],
        "ends": np.diff(ends, prepend=0).tolist(),
        "growth": tree.growth[ends].tolist(),
        "growthUnit": "bytes" if profile.is_difference else "bytes/min",
        "names": list(map(printable, tree.names)),
        "modules": list(map(printable, tree.modules)),
        "places": list(map(printable, tree.places)),
        "up": (np.arange(len(symbol)) - tree.merged.parent).tolist(),
        "symbol": symbol.tolist(),
        **dict(zip(("name", "module", "place"), symbols.tolist(), strict=True)),
    }


@cache
def asset(name: str) -> str:
    """Returns the text of a file in the folder ``web``."""
    return resources.files("tracelloc.show.export").joinpath("web", name).read_text("utf-8")
