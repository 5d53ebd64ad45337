"""A profile as a tree of columns: what the flame graphs draw.

Children follow their parents; the root has number 0. Names, files and places are
numbers into lists, so that each is there once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tracelloc.filters import NamedStack
from tracelloc.text import printable
from tracelloc.units import NS_PER_S, about_of, format_duration
from tracelloc.views.calltree import frame_name, root_name, shown_frames, steps
from tracelloc.views.metrics import Metric, Unit
from tracelloc.views.profile import Profile, Sample
from tracelloc.views.suspects import NamedSuspect, headline, sentences

_NOTHING: Final = -1
_MOST_SUSPECTS: Final = 20
"""Listed above the graph."""


@dataclass(frozen=True, slots=True)
class Width:
    """Something that widths can show; never negative."""

    key: str
    short: str
    """For a button."""
    name: str
    unit: Unit
    weight: Callable[[Sample], int]


def _after(metric: Metric) -> Callable[[Sample], int]:
    return lambda sample: max(0, sample.after(metric))


def _more(sample: Sample) -> int:
    return max(0, sample.weight(Metric.BYTES))


def _less(sample: Sample) -> int:
    return max(0, -sample.weight(Metric.BYTES))


_DIFFERENCE: Final = (
    Width("growth", "More", "more than before", Unit.BYTES, _more),
    Width("less", "Less", "less than before", Unit.BYTES, _less),
)


@dataclass(slots=True)
class FlameTree:
    """Columns of nodes."""

    widths: tuple[Width, ...]
    names: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    module: list[int] = field(default_factory=list)
    """-1: none."""
    place: list[int] = field(default_factory=list)
    """``file:line`` of the call; the file alone where lines differ; -1: unknown."""
    own: list[list[int]] = field(default_factory=list)
    """Per width and node, of stacks that end there."""
    growth: list[int] = field(default_factory=list)
    """Bytes per minute, or by which a difference differs; of stacks that end there."""

    def add(self, parent: int, name: str, module: str | None, place: str | None) -> int:
        """A new node's number."""
        self.parent.append(parent)
        self.name.append(_number(self.names, name))
        self.module.append(_number(self.modules, module))
        self.place.append(_number(self.places, place))
        self.growth.append(0)
        for column in self.own:
            column.append(0)
        return len(self.parent) - 1


def _number(known: dict[str, int], text: str | None) -> int:
    return _NOTHING if not text else known.setdefault(text, len(known))


def texts(known: dict[str, int]) -> list[str]:
    """What the numbers stand for, fit to be shown."""
    return list(map(printable, known))


def _widths(profile: Profile, metric: Metric) -> Iterator[Width]:
    """What there is to be shown, and what is asked for."""
    for each in Metric:
        if each is Metric.GROWTH and profile.is_difference:
            continue
        if each is metric or profile.shows(each):
            yield Width(each.value, each.value.capitalize(), each.noun, each.unit, _after(each))
        if each is Metric.BYTES and profile.is_difference:
            yield from _DIFFERENCE


def flame_tree(profile: Profile, metric: Metric) -> FlameTree:
    """Stacks merged by the names and files of what is shown of them, the root module first.

    ``metric`` is among its widths.
    """
    widths = tuple(_widths(profile, metric))
    tree = FlameTree(widths, own=[[] for _ in widths])
    tree.add(0, "all", None, None)
    known: dict[tuple[int, str, str | None], int] = {}
    places: dict[int, tuple[str | None, int | None]] = {}
    growth = Metric.BYTES if profile.is_difference else Metric.GROWTH
    for sample in profile.samples:
        at = 0
        for name, module, file, line in reversed(_steps(sample.stack, sample.stat.index)):
            key = at, name, module
            node = known.get(key)
            if node is None:
                node = known[key] = tree.add(at, name, module, None)
                places[node] = file, line
            elif places[node] != (file, line):
                places[node] = (file if places[node][0] == file else None), None
            at = node
        for column, width in zip(tree.own, widths, strict=True):
            column[at] += width.weight(sample)
        tree.growth[at] += sample.weight(growth)
    for node, (file, line) in places.items():
        tree.place[node] = _number(tree.places, f"{file}:{line}" if file and line else file)
    return tree


def _steps(stack: NamedStack, index: int) -> list[tuple[str, str | None, str | None, int | None]]:
    """(name, module, file, line), innermost first."""
    if not stack.frames:
        return [(step.name, None, None, None) for step in steps(stack, index)[::-1]]
    found = [(name, f.module, f.file, f.line) for name, f in shown_frames(stack)]
    found.append((root_name(stack), None, None, None))
    return found


def _elapsed(profile: Profile) -> str:
    seconds = round(profile.elapsed_ns / NS_PER_S)
    if not seconds:
        return ""
    return f"{format_duration(seconds)} {'apart' if profile.is_difference else 'traced'}"


def _suspect(named: NamedSuspect, profile: Profile) -> dict[str, Any]:
    """``path`` leads to its frame from the root on; of a group ``search`` finds what it shares."""
    path = [printable(name) for name, *_ in reversed(_steps(named.stack, named.suspect.stack))]
    about = about_of(profile.sample_bytes)
    shared = None if named.shared is None else printable(frame_name(named.shared))
    return {
        "name": shared or path[-1],
        "headline": headline(named.judgement, named.now_ns, about=about),
        "why": list(sentences(named)),
        "search": shared,
        "path": path,
    }


def page_data(profile: Profile, metric: Metric, refresh_s: float | None = None) -> dict[str, Any]:
    """What the page reads; ``refresh_s`` is how often it is to ask for newer."""
    tree = flame_tree(profile, metric)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(profile.time_s))
    return {
        "title": printable(profile.target.command) or "?",
        "pid": profile.target.pid,
        "when": when,
        "elapsed": _elapsed(profile),
        "sampled": profile.sample_bytes is not None,
        "difference": profile.is_difference,
        "notes": [printable(note) for note in profile.notes],
        "suspects": [_suspect(named, profile) for named in profile.suspects[:_MOST_SUSPECTS]],
        "refresh": refresh_s,
        "metric": metric.value,
        "metrics": [
            {"key": w.key, "short": w.short, "name": w.name, "unit": w.unit.value, "own": column}
            for w, column in zip(tree.widths, tree.own, strict=True)
        ],
        "growth": tree.growth,
        "growthUnit": "bytes" if profile.is_difference else "bytes/min",
        "names": texts(tree.names),
        "modules": texts(tree.modules),
        "places": texts(tree.places),
        "parent": tree.parent,
        "name": tree.name,
        "module": tree.module,
        "place": tree.place,
    }
