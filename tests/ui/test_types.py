"""The view of types."""

from textual.pilot import Pilot

from tests.ui.screens import text_of
from tests.ui.source import DNS, LIVE, on_live_screen, press
from tracelloc.text import format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.tableview import Table


@on_live_screen()
async def test_rows_by_type(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "Y")
    table = app.screen.query_one("#types", Table)
    lines = text_of(app)[8:]
    (row,) = (line for line in lines if "dns::Record[]" in line)
    assert f" {format_size(LIVE['dns::Message::decode'])} " in row
    assert any(line.rstrip().endswith("unknown") for line in lines)
    assert len(table.order) == 2
    await press(app, pilot, "slash", *"Record", "enter")
    assert list(table.order) == [DNS]
    await press(app, pilot, "enter")
    assert app.state.settings.selected == DNS
