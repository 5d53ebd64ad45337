"""The view of types."""

from textual.pilot import Pilot

from tests.ui.source import DNS, on_live_screen, press
from tracelloc.ui.app import LiveApp
from tracelloc.ui.tableview import Table


@on_live_screen()
async def test_rows_by_type(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "Y")
    table = app.screen.query_one("#types", Table)
    assert len(table.order) == 2
    await press(app, pilot, "slash", *"Record", "enter")
    assert list(table.order) == [DNS]
    await press(app, pilot, "enter")
    assert app.state.settings.selected == DNS
