"""Types of a Python program's objects on the screen."""

from pathlib import Path

from textual.pilot import Pilot

from tests.pythonobjects import SESSION, census, growing
from tests.snapshots import with_facets
from tests.ui.screens import text_of
from tests.ui.source import LEAK, FakeSource, live, on_live_screen, press, shop, tick
from tracelloc.model.objects import ObjectFindings
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.ui.app import LiveApp
from tracelloc.ui.objectview import TypeKey
from tracelloc.ui.tableview import Heading, Table


def python_shop(directory: Path) -> FakeSource:
    """A server in Python, whose sessions grow."""
    return shop(
        directory, has_python=True,
        change=lambda one: with_facets(one, objects=growing(one.time_s)),
    )  # fmt: skip


async def test_a_type_that_grows_leads_to_all_types(tmp_path: Path) -> None:
    async with live(python_shop(tmp_path)) as (app, pilot):
        table = app.screen.query_one("#stacks", Table)
        assert table.order[0] == TypeKey(SESSION)
        await press(app, pilot, "enter")
        assert app.state.settings.view.name == "objects"
        order = app.screen.query_one("#objects", Table).order
        assert order == [TypeKey("dict"), TypeKey(SESSION), TypeKey("str")]
        rows = app.screen.query_one("#objects", Table)
        assert rows.has_focus
        for key, cursor in (("end", 2), ("up", 1), ("home", 0), ("down", 1)):
            await press(app, pilot, key)
            assert rows.cursor == cursor
        await press(app, pilot, "slash", *"sess", "enter")
        assert app.screen.query_one("#objects", Table).order == [TypeKey(SESSION)]


async def test_until_objects_are_counted_a_row_says_so(tmp_path: Path) -> None:
    traced_s = 7.5

    def counted(one: Snapshot) -> Snapshot:
        first, now = (census(one.time_s - ago_s, dict=(9, 900)) for ago_s in (traced_s, 0))
        return with_facets(one, objects=ObjectFindings(now, first))

    async with live(shop(tmp_path, change=counted)) as (app, pilot):
        table = app.screen.query_one("#stacks", Table)
        assert table.order[:2] == [Heading("Python objects: counting, 13 s"), LEAK]
        assert "Python objects: counting, 13 s" in " ".join(text_of(app))
        assert table.key == LEAK
        traced_s = 20.0
        await tick(app, pilot)
        assert table.order[0] == table.key == LEAK


@on_live_screen()
async def test_without_python_there_is_no_such_tab(app: LiveApp, pilot: Pilot[int]) -> None:
    assert "Objects" not in " ".join(text_of(app))
    await press(app, pilot, "O")
    assert app.state.settings.view.name == "stacks"


async def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    async with live(shop(tmp_path, has_python=True)) as (app, pilot):
        await press(app, pilot, "O")
        assert "not a Python program" in " ".join(text_of(app))
