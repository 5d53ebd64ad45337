"""The chart of functions or call stacks, stacked over time."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.ui.screens import text_of
from tests.ui.source import CACHE, LEAK, LIVE, SECONDS, live, on_live_screen, press, shop, tick
from tracelloc.text import NS_PER_S, format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.chart import ChartView
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.functions import FUNCTIONS
from tracelloc.ui.plot import BEHIND, LABELS, Canvas, Curve, axis_label, draw_plot, nice_ceiling
from tracelloc.ui.sourcescreen import SourceScreen

MARKS = dict(zip(LIVE, "█▓▒░", strict=True))  # By function, the one with the highest peak first


def column(lines: list[str], at: int) -> str:
    """The marks in a column of the chart, from the bottom up."""
    marks = (line[at] if at < len(line) else " " for line in lines)
    return "".join(mark for mark in marks if mark in "█▓▒░╱╲·")[::-1]


def chart_of(app: LiveApp) -> list[str]:
    """The lines of the chart; what the header's plot says is not its matter."""
    view = app.screen.query_one(ChartView)
    top = view.region.y
    return text_of(app)[top : top + view.header_lines - 1]


@on_live_screen()
async def test_layers_and_rows(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "C")
    lines = chart_of(app)
    axis = next(at for at, line in enumerate(lines) if line.startswith("       0┼"))
    assert lines[1].startswith(" 550 KiB┤")
    per_row = 25 * 1024
    now = column(lines, max(len(line) for line in lines[:axis]) - 1)
    height = 0.0
    for name, mark in MARKS.items():
        before = round(height / per_row)
        height += LIVE[name]
        assert now.count(mark) == round(height / per_row) - before, name
    assert now == "".join(sorted(now, key="█▓▒░".index)), "the largest at the bottom"
    # What leaks grew, what is cached filled up in a quarter of the time.
    middle = column(lines, 9 + (len(lines[axis]) - 9) // 2)
    assert 0.4 < middle.count("█") / now.count("█") < 0.6
    assert abs(middle.count("▓") - now.count("▓")) <= 1
    await press(app, pilot, "1")

    def rows() -> list[str]:
        texts = text_of(app)
        title = next(at for at, line in enumerate(texts) if "live bytes of" in line)
        return texts[title + 1 : title + 5]

    await press(app, pilot, "C")
    for line, (name, size_bytes) in zip(rows(), LIVE.items(), strict=True):
        assert line.endswith(f"  {name}")
        assert line.count(format_size(size_bytes)) == 2, "live now, and at its peak"
        assert MARKS[name] * 2 in line
    await press(app, pilot, "down", "enter")
    assert app.state.settings.view is FUNCTIONS
    assert app.state.settings.function.name == "cache_lookup"
    await press(app, pilot, "C", "l")
    assert isinstance(app.screen, SourceScreen)
    assert "cache_lookup" in text_of(app)[0]
    await press(app, pilot, "escape", "C")
    assert "live bytes of call stacks" in "\n".join(text_of(app))
    assert rows()[0].endswith("record_request (server.c:32) ← handle_request")
    await press(app, pilot, "home", "enter")
    assert isinstance(app.screen, DetailScreen)
    await press(app, pilot, "escape", "slash", *"dns", "enter")
    assert "dns::Message::decode" in rows()[0]
    assert "record_request" not in "\n".join(rows())


async def test_what_has_gone_keeps_its_layer_and_small_ones_are_together(tmp_path: Path) -> None:
    source = shop(tmp_path)
    many = {100 + n: [(f"small_{n}", None, None, None)] for n in range(8)}
    source = type(source)({**source.stacks, **many}, tmp_path)
    held = source.allocate(CACHE, 1 << 20)
    for stack in many:
        source.allocate(stack, 1000)
    source.allocate(LEAK, 64 << 10)
    for second in range(SECONDS):
        if second == SECONDS // 2:
            source.free(held)
        source.pass_second()
    async with live(source) as (app, pilot):
        await press(app, pilot, "C")
        await tick(app, pilot)
        shown = text_of(app)
        first = next(line for line in shown if "cache_lookup" in line)
        assert "0 B" in first
        assert format_size(1 << 20) in first
        rest = next(line for line in shown if "all others" in line)
        assert format_size(4000) in rest


@on_live_screen((80, 14))
async def test_without_room_and_without_blocks(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "C")
    assert chart_of(app) == []
    assert "record_request" in "\n".join(text_of(app))
    await press(app, pilot, "slash", *"nothing", "enter")
    assert "no stacks match /nothing" in "\n".join(text_of(app))


def test_plots() -> None:
    canvas = Canvas(LABELS + 10 + BEHIND, 5, 0, 10 * NS_PER_S)
    assert canvas.edges_ns().tolist() == [second * NS_PER_S for second in range(1, 11)]
    curve = Curve("heap", [0, 5 * NS_PER_S], [10, 20], "plot--heap")
    rows = draw_plot([curve], [], 0, 10 * NS_PER_S, width=LABELS + 10 + BEHIND, height=5)
    lines = ["".join(cell for cell, _ in row[LABELS : LABELS + 10]) for row in rows]
    assert lines[:4] == ["    ██████"] * 2 + ["██████████"] * 2
    # A leak of 3 of 4 MiB, a limit nearby, and unknown values in between.
    heap = Curve("heap", [0, 4 * NS_PER_S, 6 * NS_PER_S], [4 << 20, -1, 4 << 20], "plot--heap")
    leak = Curve("leak", [0], [3 << 20], "plot--leak", is_part=True)
    limit = Curve("limit", [0], [8 << 20], "plot--limit")
    size = {"width": LABELS + 10 + BEHIND, "height": 5}
    rows = draw_plot([heap, leak, limit], [], 0, 10 * NS_PER_S, **size)
    styles = [[style for _, style in row[LABELS : LABELS + 10]] for row in rows]
    assert styles[0] == ["plot--limit"] * 10
    both = "plot--leak plot--heap"
    assert styles[2] == [*[both] * 3, "", "", *[both] * 5]
    assert [letter for letter, _ in rows[2][LABELS : LABELS + 3]] == ["▄"] * 3
    assert "8 MiB" in "".join(text for text, _ in rows[0])
    # Objects of 4 MiB on a heap of 3 MiB, of which 1 MiB leaks.
    both = Curve("+obj", [0], [7 << 20], "plot--objects")
    heap = Curve("heap", [0], [3 << 20], "plot--heap", is_part=True)
    leak = Curve("leak", [0], [1 << 20], "plot--leak", is_part=True)
    size = {"width": LABELS + 10 + BEHIND, "height": 9}
    rows = draw_plot([both, heap, leak], [], 0, 10 * NS_PER_S, **size)
    expected = ["", *["objects"] * 4, *["heap"] * 2, "leak"]
    assert [row[LABELS][1].removeprefix("plot--") for row in rows[:-1]] == expected
    names = ["".join(letter for letter, _ in row[-BEHIND:]).strip() for row in rows[:-1]]
    assert names == ["", "+obj", "", "", "", "heap", "", "leak"]


@pytest.mark.parametrize(
    ("value", "lines", "labels"),
    [(581 << 10, 6, ["600 KiB", "400 KiB", "200 KiB"]), (1023, 4, ["1200 B", "600 B"]),
     (1.3 * 2**30, 6, ["1.5 GiB", "1 GiB", "0.5 GiB"]), (0, 4, ["4 B", "2 B"])],
)  # fmt: skip
def test_ticks_are_round_and_in_one_unit(value: float, lines: int, labels: list[str]) -> None:
    top = nice_ceiling(value, lines)
    assert [axis_label(top * n / lines, top) for n in range(lines, 0, -2)] == labels
