"""Functions: flat and cumulative figures, callers and callees; and types."""

from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot

from tests.ui.screens import line_with
from tests.ui.source import DNS, LIVE, on_live_screen, press, shop
from tracelloc.text import format_size
from tracelloc.ui import functions
from tracelloc.ui.app import LiveApp
from tracelloc.ui.functions import COLUMNS, FUNCTIONS, FunctionKey
from tracelloc.ui.picture import Picture, Pictures
from tracelloc.ui.stackviews import STACKS
from tracelloc.ui.tableview import Table, TableRows
from tracelloc.ui.view import Journal, Settings


def shown(picture: Picture) -> dict[str, tuple[object, ...]]:
    """The rows by function: what the columns say."""
    rows: TableRows = picture.content
    return {
        key.step.name: tuple(str(rows.cells(key, column.key)) for column in COLUMNS)
        for key in rows.order
        if isinstance(key, FunctionKey)
    }


def test_what_takes_long_is_counted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shop(tmp_path)
    settings = Settings(view=FUNCTIONS)
    whole = Pictures(source, Journal())
    trace = whole.take_snapshot(settings)
    rows = shown(whole.make(trace, settings))
    monkeypatch.setattr(functions, "_AT_ONCE", 2)
    monkeypatch.setattr(functions, "_BUDGET_S", -1.0)
    pictures, named = Pictures(source, Journal()), 0
    for left in reversed(range(int(np.count_nonzero(trace.root.totals.live_count)))):
        picture = pictures.make(trace, settings)
        named += 1
        assert picture.names_pending == left
        assert picture.is_partial == ("[not counted yet]" in shown(picture)) == (left > 0)
    assert named > 1
    assert shown(picture) == rows


@on_live_screen()
async def test_flat_and_cumulative_callers_and_callees(app: LiveApp, pilot: Pilot[int]) -> None:
    def table() -> Table:
        return app.screen.query_one("#functions", Table)

    await press(app, pilot, "F")
    own = {name: LIVE[name] for name in ("record_request", "cache_lookup", "append_log")}
    for name, size_bytes in own.items():
        assert line_with(app, name, 8).count(format_size(size_bytes)) == 2, (
            "allocated in it, and below"
        )
    handled = format_size(sum(own.values()))
    assert f" {handled} " in line_with(app, "handle_request", 8)
    assert " 0 B " in line_with(app, "handle_request", 8)
    names = [key.step.name for key in table().order if isinstance(key, FunctionKey)]
    await press(app, pilot, *(["down"] * names.index("handle_request")), "enter")
    shown = [key for key in table().order if isinstance(key, FunctionKey) and key.role]
    assert [(key.step.name, key.role) for key in shown] == [
        ("serve", "callers"), ("record_request", "callees"), ("cache_lookup", "callees"),
        ("append_log", "callees"),
    ]  # fmt: skip
    assert [key.size_bytes for key in shown[1:]] == list(own.values())
    assert app.state.settings.view is FUNCTIONS
    await press(app, pilot, "escape")
    assert not any(isinstance(key, FunctionKey) and key.role for key in table().order)
    await press(app, pilot, "slash", *"cache", "enter")
    assert [key.step.name for key in table().order] == ["cache_lookup"]  # type: ignore[attr-defined]
    await press(app, pilot, "escape", "escape")
    assert app.state.settings.view is STACKS


@on_live_screen()
async def test_rows_by_type(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "Y")
    table = app.screen.query_one("#types", Table)
    assert len(table.order) == 2
    await press(app, pilot, "slash", *"Record", "enter")
    assert list(table.order) == [DNS]
    await press(app, pilot, "enter")
    assert app.state.settings.selected == DNS
