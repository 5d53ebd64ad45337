"""One stack in full, its keys, and the rules they make."""

from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.blockholders import KEPT
from tests.ui.screens import shown, text_of
from tests.ui.source import LEAK, FakeSource, live, on_live_screen, press, tick, until
from tests.unit.show.presentation.test_views import frame
from tracelloc.model.process import Target
from tracelloc.show.filters.rules import Action, Match, On, parse_rules
from tracelloc.ui.app import LiveApp
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.frames import rule_for, source_of
from tracelloc.ui.live_screen import LiveScreen
from tracelloc.ui.tableview import Table


async def test_who_holds_its_blocks(source: FakeSource) -> None:
    """In the pane, which takes what the table leaves, with source lines, and in a screen."""
    source.holders = {LEAK: KEPT}
    async with live(source, (80, 24)) as (app, pilot):
        assert "function, innermost first" in shown(app)
        assert "held by" in shown(app)
        assert "server.c:32: int line_32;" in shown(app)
        await pilot.resize_terminal(80, 18)
        await until(app, pilot, lambda: "function, innermost first" not in shown(app))
        await pilot.resize_terminal(160, 40)
        sentence = "held by app::g_sessions (server)"
        await until(app, pilot, lambda: sentence in shown(app) and "int line_36;" in shown(app))
        assert "→ 32  int line_32;" in shown(app)
        assert shown(app).count("  int line_") == 9
        await press(app, pilot, "enter")
        assert sentence in shown(app)


async def test_hide_undo_collapse_save(source: FakeSource) -> None:
    async with live(source) as (app, pilot):
        await press(app, pilot, "end", "enter")
        assert "(2 frames hidden)" in shown(app)
        for is_seen in (True, False):
            await press(app, pilot, "h")
            assert ("alloc::raw_vec::finish_grow" in shown(app)) == is_seen
        assert app.screen.query_one("#frames", Table).cursor == 1, "hidden frames are above"
        await press(app, pilot, "H")
        assert "dns::Message::decode" not in "\n".join(text_of(app)[8:20])
        await press(app, pilot, "u")
        assert "dns::Message::decode" in "\n".join(text_of(app)[8:20])
        await press(app, pilot, "W")
        assert not source.invoker.filters.exists()
        await press(app, pilot, "z")
        assert "[dns::Message]" in shown(app)
        await press(app, pilot, "W", "escape")
        assert app.state.picture.labels[5] == "dns::Client::update_records (dns.rs:77) ← [tokio]"
    rules = parse_rules(source.invoker.filters.read_text(), "filters.toml").rules
    assert [(r.pattern, r.action, r.label) for r in rules] == [
        ("dns::Message::", Action.COLLAPSE, "dns::Message")
    ]


@on_live_screen()
async def test_figures_source_rules_and_help(
    app: LiveApp, pilot: Pilot[int], source: FakeSource
) -> None:
    await press(app, pilot, "enter", "H", "escape", "f", "end")
    assert "hide ^record_request$" in shown(app)
    await press(app, pilot, "W")
    text = source.invoker.filters.read_text()
    assert parse_rules(text, "filters.toml").rules[0].pattern == "^record_request$"
    await press(app, pilot, "delete", "escape")
    assert source.filters.added == ()
    # The source follows the cursor.
    await press(app, pilot, "enter", "down")
    assert "→ 95  int line_95;" in shown(app)
    # Figures go on, the stack stays, whatever rows do behind it.
    source.allocate(4, 10 << 20)
    source.allocate(LEAK, 160)
    await tick(app, pilot)
    assert "2,401 blocks" in shown(app)
    await press(app, pilot, "question_mark")
    text = "\n".join(map(str, app.screen.query_one(Table).order))
    for binding in DetailScreen.BINDINGS:
        assert binding.tooltip in text  # type: ignore[union-attr]
    await press(app, pilot, "escape", "e", "escape", "q")
    assert isinstance(app.screen, LiveScreen)
    assert app.state.picture.content.order[:2] == [LEAK, 4]


async def test_copy_and_editor(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setenv("VISUAL", "ed --plain")
    monkeypatch.setattr(
        "tracelloc.ui.frames.subprocess.run",
        lambda command, check: started.append(command) or type("R", (), {"returncode": 0}),
    )
    async with live(source) as (app, pilot):
        from contextlib import nullcontext

        app.suspend = nullcontext  # type: ignore[assignment,method-assign]
        await press(app, pilot, "enter", "y")
        lines = app.clipboard.splitlines()
        assert len(lines) == 4
        assert "start_thread" in lines[-1]
        await press(app, pilot, "E")
        await press(app, pilot, "down", "enter")
        await press(app, pilot, "end", "E")
    assert started == [
        ["ed", "--plain", "+32", "/src/server.c"],
        ["ed", "--plain", "+95", "/src/server.c"],
    ]


@pytest.mark.parametrize(
    ("symbol", "module", "does_collapse", "rule"),
    [
        ("shop::arena::Arena<T>::grow", "/opt/app", True, ("shop::arena::", "shop::arena")),
        ("grow", "/opt/app", True, ("^grow$", "grow")),
        (None, "/opt/app", False, ("/app$", None)),
        (None, None, False, None),
    ],
)
def test_rules_of_frames(
    symbol: str | None, module: str | None, does_collapse: bool, rule: tuple[str, str | None] | None
) -> None:
    found = rule_for(frame(symbol, 1, module), collapse=does_collapse)
    assert (found and (found.pattern, found.label)) == rule
    assert not found or (found.on is On.MODULE) == (symbol is None)


def test_a_name_as_a_rule_means_just_it() -> None:
    hide = rule_for(frame("operator new[](unsigned long)"), collapse=False)
    assert hide.match is Match.REGEX
    assert hide.tester()("operator new[](unsigned long)")
    assert not hide.tester()("operator new[](unsigned long, int)")


def test_source_lines() -> None:
    def shown(text: list[str], line: int) -> tuple[list[str], str]:
        at = replace(frame("b"), file="a.c", line=line)
        lines, why = source_of(lambda *_: text, Target(1, "srv"), at, 5)
        return [each.plain for each in lines], why

    lines, why = shown(["a", "\x1b[31mb\tc", "d"], 2)
    assert lines[1].startswith("→ 2  \\x1b[31mb")
    assert "\x1b" not in lines[1]
    assert why == ""
    assert "a different version" in shown(["a"], 9)[1]
