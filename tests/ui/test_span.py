"""A span of the traced time: chosen on the chart, and what was allocated in it and still lives."""

from textual.pilot import Pilot

from tests.ui.screens import line_with, text_of
from tests.ui.source import SECONDS, START_NS, on_live_screen, press, settle
from tracelloc.text import NS_PER_S, format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.plot import BEHIND, LABELS, column_ns
from tracelloc.ui.spanplot import SpanPlot

COLUMNS = 120 - LABELS - BEHIND
LEAKED_PER_S = 20 * 160


def leaked(app: LiveApp) -> str:
    return line_with(app, "record_request", 9)


def column_s(column: int) -> float:
    return column * column_ns(SECONDS * NS_PER_S, COLUMNS, fits=False) / NS_PER_S


@on_live_screen()
async def test_spans_are_chosen_by_keys_and_mouse(app: LiveApp, pilot: Pilot[int]) -> None:
    whole = leaked(app)
    await press(app, pilot, "x")
    assert "-0 s set start:" in text_of(app)[2]
    await press(app, pilot, "home", "right", "enter")
    assert " set end:" in text_of(app)[2]
    await press(app, pilot, "shift+right", "shift+right", "right", "right", "enter")
    first, last = ((moment - START_NS) / NS_PER_S for moment in app.state.settings.span)
    assert (round(first, 6), round(last, 6)) == (round(column_s(1), 6), round(column_s(23), 6))
    # Births are whole seconds: those from 2 to 34.
    assert (int(first), int(last)) == (1, 34)
    size = format_size(33 * LEAKED_PER_S)
    assert size in leaked(app)
    shown = "\n".join(text_of(app))
    assert f" {size} (x)" in shown
    assert "cache_lookup" not in shown, "of what was allocated then nothing is live"
    await press(app, pilot, "escape")
    assert app.state.settings.span is None
    assert leaked(app) == whole
    for keys in (("x", "escape"), ("x", "left", "enter", "escape"), ("x", "enter", "enter")):
        await press(app, pilot, *keys)
        assert app.state.settings.span is None
        assert "← →" not in "\n".join(text_of(app))
        # Keys are the table's again.
        assert app.screen.focused is not app.screen.query_one(SpanPlot)
    await press(app, pilot, "x", "slash")
    assert "← →" not in "\n".join(text_of(app)), "what gets the keys ends it"
    await press(app, pilot, "escape")
    await pilot.mouse_down("#plot", offset=(LABELS + 50, 2))
    await pilot.hover("#plot", offset=(LABELS + 40, 2))
    await pilot.mouse_up("#plot", offset=(LABELS + 31, 2))
    await settle(app, pilot)
    first, last = ((moment - START_NS) / NS_PER_S for moment in app.state.settings.span)
    assert (round(first, 6), round(last, 6)) == (round(column_s(31), 6), round(column_s(51), 6))
    count = int(last) - int(first)
    assert format_size(count * LEAKED_PER_S) in leaked(app)
    await press(app, pilot, "escape")
    await pilot.click("#plot", offset=(LABELS + 20, 2))
    await settle(app, pilot)
    assert app.state.settings.span is None, "a click is no span"


@on_live_screen((100, 12), notifications=True)
async def test_without_the_chart_there_is_a_word_on_that(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "x")
    await pilot.pause()
    assert "too small for the chart" in "\n".join(text_of(app))
