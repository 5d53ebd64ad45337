"""Source of a function with live bytes per line."""

from pathlib import Path

from textual.pilot import Pilot

from tests.ui.screens import line_with, shown, text_of
from tests.ui.source import LEAK, LIVE, live, on_live_screen, press, shop, tick, until
from tracelloc.text import format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.functions import FunctionKey
from tracelloc.ui.sourcescreen import SourceScreen
from tracelloc.ui.tableview import Table


def cells(text: str) -> list[str]:
    """What stands in a line, units with their figures."""
    return " ".join(text.replace("›", " ").split()).split()


async def test_lines_have_their_own_bytes_and_those_of_their_callees(tmp_path: Path) -> None:
    source = shop(tmp_path)
    handled = sum(LIVE[name] for name in ("record_request", "cache_lookup", "append_log"))
    async with live(source) as (app, pilot):
        await press(app, pilot, "l")
        assert isinstance(app.screen, SourceScreen)
        table = app.screen.query_one(Table)
        assert "record_request" in text_of(app)[0]
        size = format_size(LIVE["record_request"])
        assert f" {size} allocated in it, {size} with its callees, 2,400 blocks" in text_of(app)[1]
        assert text_of(app)[2] == " /src/server.c"
        # The cursor begins on the function's heaviest line, which allocates itself.
        assert table.key == 32
        assert cells(line_with(app, "int line_32;")) == [
            *size.split(), *size.split(), "2.40k", "32", "int", "line_32;",
        ]  # fmt: skip
        assert cells(line_with(app, "int line_33;")) == ["33", "int", "line_33;"]
        # Of the file's other lines those are next that lead there.
        await press(app, pilot, "J")
        assert table.key == 95
        assert cells(line_with(app, "int line_95;"))[:2] == format_size(handled).split()
        await press(app, pilot, "J", "J")
        assert table.key == 32
        await press(app, pilot, "K")
        assert table.key == 107
        # New figures come as they do everywhere, and the cursor stays.
        source.allocate(LEAK, 1 << 20)
        await tick(app, pilot)
        assert table.key == 107
        assert format_size(LIVE["record_request"] + (1 << 20)) in text_of(app)[1]
        # Enter opens the heaviest stack through the line.
        await press(app, pilot, "enter")
        assert isinstance(app.screen, DetailScreen)
        assert "record_request" in text_of(app)[0]
        # From there the function of the frame under the cursor, and all the way back.
        await press(app, pilot, "down", "l")
        assert "handle_request" in text_of(app)[0]
        assert app.screen.query_one(Table).key == 95
        await press(app, pilot, "escape", "escape")
        assert isinstance(app.screen, SourceScreen)
        await tick(app, pilot)
        assert app.state.picture.listing.function.step.name == "record_request"
        await press(app, pilot, "escape")
        assert app.state.settings.listed_function is None


def functions(app: LiveApp) -> list[str]:
    order = app.screen.query_one("#functions", Table).order
    return [key.step.name for key in order if isinstance(key, FunctionKey)]


@on_live_screen()
async def test_a_function_of_the_view_of_functions(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "F")
    await press(app, pilot, *(["down"] * functions(app).index("cache_lookup")), "l")
    # Its file can't be read: lines with bytes are there without their text.
    text = shown(app)
    assert " /src/cache.c" in text
    assert "cannot read source: No such file or directory (--sources OLD=NEW)" in text
    assert list(app.screen.query_one(Table).order) == [47]
    size = format_size(LIVE["cache_lookup"]).split()
    assert cells(text_of(app)[5]) == [*size, *size, "30", "47"]
    await press(app, pilot, "escape", "home", "n")
    await until(app, pilot, lambda: "start_thread" in functions(app))
    await press(app, pilot, *(["down"] * functions(app).index("start_thread")), "l")
    assert "no source lines known for this function" in shown(app)
    await press(app, pilot, "enter", "J", "E")
