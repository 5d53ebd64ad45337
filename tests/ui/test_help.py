"""The help: keys by what they are for, verdicts and terms."""

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.ui.screens import shown, text_of
from tests.ui.source import on_live_screen, press
from tracelloc.ui.app import LiveApp
from tracelloc.ui.tableview import Table


@on_live_screen()
async def test_keys_are_grouped_terms_explained_and_searched(
    app: LiveApp, pilot: Pilot[int]
) -> None:
    live = app.screen
    await press(app, pilot, "question_mark")
    assert "Search names, files, modules (regex)" in shown(app)
    keys = list(app.screen.query_one(Table).order)
    texts = [" ".join(key) if isinstance(key, tuple) else str(key) for key in keys]
    assert {"Find", "Sort", "Compare", "Verdicts", "Glossary"} <= set(texts)
    assert any(text.startswith("leaking") and "unreachable" in text for text in texts)
    assert any("a free of a block from before tracing began" in text for text in texts)
    assert len(set(map(str, keys))) >= len(keys) - 4, "headings' blanks apart, rows are unique"
    await press(app, pilot, "end")
    assert "verdict" in shown(app)
    await press(app, pilot, "slash", *"uprobe")
    lines = [line.strip(" │›") for line in text_of(app)]
    assert "probe, return probe" in lines, "longer than the keys above"
    table = app.screen.query_one(Table)
    assert len(table.order) < 6
    await press(app, pilot, "enter")
    assert table.has_focus
    await press(app, pilot, "slash", *"zz")
    assert "nothing has these words" in shown(app)
    await press(app, pilot, "escape")
    assert len(table.order) > 60
    await press(app, pilot, "escape")
    assert app.screen is live
    # A word of the header is explained.
    await pilot.click("#header", offset=(text_of(app)[1].index("growing"), 1))
    await pilot.pause()
    assert app.screen.query_one(Input).value == "growing"
    rows = app.screen.query_one(Table).order
    assert len(rows) < 20
    assert any(isinstance(row, tuple) and row[0] == "growing" for row in rows)
    await press(app, pilot, "escape")
    assert len(app.screen.query_one(Table).order) > 60


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
@on_live_screen()
async def test_help_wraps_and_begins_with_the_keys_of_the_list(
    app: LiveApp, pilot: Pilot[int], size: tuple[int, int]
) -> None:
    await press(app, pilot, "4", "question_mark")
    rows = app.screen.query_one(Table).order
    assert rows[0] == "In this list"
    assert ("-", "Collapse all functions") in rows[:20]
    whole = " ".join(row[1] for row in rows if isinstance(row, tuple))
    assert "Show only live blocks allocated in a span of time, chosen on the chart" in whole
    seen = ""
    for _ in range(len(rows) // 10):
        seen += "\n".join(text_of(app))
        await press(app, pilot, "pagedown")
    lines = [row[1] if isinstance(row, tuple) else row for row in rows]
    assert [line for line in lines if line not in seen] == []
