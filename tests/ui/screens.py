"""Views on a screen without a terminal: fixed data, and pictures as plain text.

Pictures lie in ``tests/data/screens``; with TRACELLOC_UPDATE_SCREENS set they are written
instead of compared, to be read as a change like any other.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import numpy as np
import textual._wait
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

import tracelloc.ui
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.show.presentation.calltree import CallTree, Merger, Step
from tracelloc.show.presentation.profile import Metric

STYLES = Path(tracelloc.ui.__file__).with_name("app.tcss")
SCREENS = Path(__file__).parents[1] / "data" / "screens"
_PATIENCE_S = 20
Size = tuple[int, int]
SIZES = [(60, 20), (80, 24), (120, 40)]
MIB = 1 << 20

# Pilots wait for what was asked to be done, and then in steps of this many seconds for the
# process to be idle: the rest of a test's time, in which nothing happens.
textual._wait.SLEEP_GRANULARITY = 1 / 500

HOSTILE = [
    "[bold red]operator[][/]",
    "\x1b[31mred\x1b]0;title\x07",
    "漢字" * 40,
    "e\u0301" * 30,
    "a" + "\u0301" * 10_000,
    "x" * 10_000,
    "\u202eevil\u2066",
    "line\nbreak\ttab\r",
    "",
    "\ud800",
    "👩‍👩‍👧‍👦 family",
]


class ViewApp(App[None]):
    """One widget, and the messages that it sent."""

    CSS_PATH = STYLES

    def __init__(self, widget: Widget | None = None) -> None:
        super().__init__()
        self.widget = widget
        self.sent: list[object] = []

    def compose(self) -> ComposeResult:
        if self.widget is not None:
            yield self.widget

    def on_mount(self) -> None:
        if self.widget is not None:
            self.widget.focus()

    async def put_on_top(self, pilot: Pilot[None], screen: Screen[Any]) -> list[object]:
        """Returns what the screen is left with, once it is left."""
        result: list[object] = []
        self.push_screen(screen, result.append)
        await self.workers.wait_for_complete()
        await pilot.pause()
        await pilot.pause()
        return result

    def keep(self, message: object) -> None:
        self.sent.append(message)

    on_line_view_chosen = on_table_sort_asked = keep


@asynccontextmanager
async def shown_on(widget: Widget | None, size: Size) -> AsyncIterator[tuple[ViewApp, Pilot[None]]]:
    """An app with the widget, and its pilot, until the block ends."""
    app = ViewApp(widget)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


def as_test(
    run: Callable[..., None], coroutine: Callable[..., Awaitable[None]], *made: str, needs: str = ""
) -> Callable[..., None]:
    """A test that runs a coroutine. Its fixtures: the parameters after the app and its pilot."""
    names = [name for name in list(signature(coroutine).parameters)[2:] if name not in made]
    if needs and needs not in names:
        names.append(needs)
    update_wrapper(run, coroutine)
    run.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])
    return run


def on_screen(
    widget: Callable[[], Widget] | None = None, size: Size = (80, 24)
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a test of a coroutine: on a screen with a widget, which it gets as ``view``."""

    def decorate(coroutine: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        wants_view = "view" in signature(coroutine).parameters

        def run(**fixtures: Any) -> None:
            view = widget() if widget else None
            given = {**fixtures, "view": view} if wants_view else fixtures

            async def steps() -> None:
                async with shown_on(view, fixtures.get("size", size)) as (app, pilot):
                    await coroutine(app, pilot, **given)

            asyncio.run(steps())

        return as_test(run, coroutine, "view")

    return decorate


def program_writes(terminal: ProgramTerminal, text: bytes) -> None:
    """Writes as the program would, and waits until the terminal has it."""
    os.write(terminal._its, text)
    last = text[-9:].replace(b"\n", b"\r\n")
    deadline_s = time.monotonic() + _PATIENCE_S
    while not terminal.last_output()[1].endswith(last):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def lines_of(app: App[None]) -> list[list[Segment]]:
    """What is on the screen, a list of segments per line."""
    return [list(strip) for strip in app.screen._compositor.render_strips()]


def text_of(app: App[None]) -> list[str]:
    """What is on the screen, a string per line."""
    return ["".join(segment.text for segment in line).rstrip() for line in lines_of(app)]


def shown(app: App[None]) -> str:
    """Returns the screen's lines as one text."""
    return "\n".join(text_of(app))


def line_with(app: App[None], words: str, top: int = 0) -> str:
    """The first line on the screen, from a row on, that has these words."""
    found = [line for line in text_of(app)[top:] if words in line]
    assert found, shown(app)
    return found[0]


def styled(app: App[None], attribute: str) -> list[str]:
    """The texts on the screen whose style has an attribute: ``reverse``, ``underline`` …"""
    return [
        segment.text
        for line in lines_of(app)
        for segment in line
        if segment.style is not None and getattr(segment.style, attribute)
    ]


async def compare(name: str, app: App[None], pilot: Pilot[None]) -> None:
    """Waits until the screen equals the picture of this name at its size: parts follow later."""
    await pilot.pause(0.1)  # What comes next must not meet what is still to be drawn.
    width, height = app.size
    path = SCREENS / f"{name}-{width}x{height}.txt"
    if os.environ.get("TRACELLOC_UPDATE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(_picture(app))
    deadline_s = time.monotonic() + _PATIENCE_S
    while _picture(app) != path.read_text() and time.monotonic() < deadline_s:
        await pilot.pause(0.05)
    assert _picture(app) == path.read_text(), f"{path} differs:\n{_picture(app)}"


def _picture(app: App[None]) -> str:
    return shown(app).rstrip("\n") + "\n"


def path(*names: str) -> list[Step]:
    """Steps, each ``name`` or ``name!file``."""
    split = [name.partition("!") for name in names]
    return [Step(name, module or "/opt/api-server") for name, _, module in split]


def weights(size: int, count: int, growth: int) -> dict[Metric, int]:
    return {
        Metric.BYTES: size, Metric.BLOCKS: count, Metric.ALLOCATED: 3 * size, Metric.GROWTH: growth,
    }  # fmt: skip


SERVED = ("main", "server::run", "http::serve")
SAMPLE = [
    (1, (*SERVED, "Session::open", "cache::insert", "Vec<T>::push"), (52 * MIB, 1024, 2 * MIB)),
    (2, (*SERVED, "Session::open", "tls::accept!/usr/lib/libssl.so.3"), (14 * MIB, 300, 0)),
    (3, (*SERVED, "json::parse", "wrap!/usr/lib/libjson.so"), (9 * MIB, 90_000, -300_000)),
    (4, ("main", "config::load", "toml::parse"), (3 * MIB, 4000, 0)),
    (5, ("main", "metrics::render"), (MIB, 1, 0)),
    (6, ("start_thread!/lib/libc.so.6", "worker", "queue::pop"), (7 * MIB, 99, 1000)),
    *((10 + n, ("main", "plugins", f"plugin_{n:02}"), (20_000 + n, 3, 0)) for n in range(30)),
]


def build_tree(
    stacks: Sequence[tuple[int, Sequence[Step], Mapping[Metric, int]]], root: Step
) -> CallTree:
    """A tree of (stack index, its steps from the root on, its weights)."""
    merger = Merger(root)
    ends = np.array([merger.add(path)[-1] for _, path, _ in stacks], np.int64)
    weights = {
        metric: np.array([weight.get(metric, 0) for *_, weight in stacks], np.int64)
        for metric in Metric
    }
    return CallTree.from_merged(merger.merged(), ends, [index for index, *_ in stacks], weights)


def sample_tree(*, inverted: bool = False, without: frozenset[int] = frozenset()) -> CallTree:
    """A server that leaks in its sessions. In another order, numbers differ."""
    stacks = []
    for index, names, figures in SAMPLE:
        if index not in without:
            steps = path(*names)
            stacks.append((index, steps[::-1] if inverted else steps, weights(*figures)))
    return build_tree(stacks, Step("api-server", None))


def harmless(app: App[None]) -> bool:
    """Whether nothing on the screen can steer the terminal, and lines have their width."""
    from textual.strip import Strip

    width = app.size.width
    for line in lines_of(app):
        text = "".join(segment.text for segment in line)
        if any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in text):
            return False
        if any(c in text for c in "\u202e\u2066\u2028"):
            return False
        if Strip(line).cell_length != width or len(text) > 8 * width:
            return False
    return True
