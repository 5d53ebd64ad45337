"""Keys: what each does where, the footer, the palette, and how they come from the terminal."""

import sys
from collections import defaultdict

import pytest
from textual.binding import BindingsMap
from textual.command import CommandList
from textual.dom import DOMNode
from textual.drivers import linux_driver
from textual.events import Key
from textual.message import Message
from textual.pilot import Pilot

from tests.ui.screens import text_of
from tests.ui.source import FakeSource, on_live_screen, press, until
from tracelloc.ui import machinescreen
from tracelloc.ui.app import LiveApp
from tracelloc.ui.application import commands_of
from tracelloc.ui.driver import KeyParser
from tracelloc.ui.live_screen import LIVE_KEYS, view_keys
from tracelloc.ui.player import PLAYER_KEYS
from tracelloc.ui.state import VIEWS


@on_live_screen()
async def test_palette_synonyms(app: LiveApp, pilot: Pilot[int]) -> None:
    for typed, first in (
        ("leak", "V Suspects"), ("suspects", "V Suspects"), ("diff", "d Changes"),
        ("flame", "3 Flame"), ("pid", "P Choose process"), ("theme", "Theme"),
    ):  # fmt: skip
        await press(app, pilot, "ctrl+p", *typed)
        found = app.screen.query_one(CommandList)
        await until(app, pilot, lambda found=found, first=first: first in prompts(found)[:2])
        await press(app, pilot, "escape")


def prompts(found: CommandList) -> list[str]:
    """The first line of each command, with single blanks."""
    lines = (str(option.prompt).partition("\n")[0] for option in found.options)
    return [" ".join(line.split()) for line in lines]


@on_live_screen()
async def test_palette_has_no_twins(app: LiveApp, pilot: Pilot[int], source: FakeSource) -> None:
    commands = list(commands_of(app.screen))
    words = [each.word for each in commands]
    assert len(set(words)) == len(words)
    assert {each.word for each in commands if each.title[0] == " "} == {"Theme", "Screenshot"}
    assert [each.title for each in commands[:3]] == ["⏎     Details", "l     Source", "M     Mark"]
    await press(app, pilot, "ctrl+p")
    found = app.screen.query_one(CommandList)
    await until(app, pilot, lambda: "M Mark" in prompts(found))
    await press(app, pilot, "escape", "enter", "ctrl+p")
    found = app.screen.query_one(CommandList)
    await until(app, pilot, lambda: "H Hide frame" in prompts(found))
    assert "M Mark" not in prompts(found)
    await press(app, pilot, *"hide", "enter")
    await until(app, pilot, lambda: bool(source.filters.added))


# What letters do that have several actions.
ONE_MEANING = {
    "q": "leave", "f": "filters", "n": "all filters", "g": "first", "G": "last", "C": "chart",
    "e": "export",
}  # fmt: skip


def test_a_letter_means_one_thing() -> None:
    actions: defaultdict[str, set[str]] = defaultdict(set)
    assert machinescreen.__name__ in sys.modules
    modules = [module for name, module in sys.modules.items() if name.startswith("tracelloc.ui.")]
    for owner in (each for module in modules for each in vars(module).values()):
        if (
            isinstance(owner, type)
            and issubclass(owner, DOMNode)
            and "tracelloc" in owner.__module__
        ):
            for key, binding in BindingsMap(vars(owner).get("BINDINGS", ())):
                actions[key].add(binding.action.rpartition(".")[2])
    for binding in (*LIVE_KEYS, *PLAYER_KEYS, *view_keys(VIEWS)):
        actions[binding.key].add(binding.action.rpartition(".")[2])
    several = {key for key, found in actions.items() if len(key) == 1 and len(found) > 1}
    assert several == set(ONE_MEANING)


@on_live_screen((80, 24))
async def test_footer_is_of_what_has_the_focus(app: LiveApp, pilot: Pilot[int]) -> None:
    def footer() -> str:
        return text_of(app)[-1]

    usual = "⏎ Details l Source M Mark d Changes e Export / Search ? Help q Quit ^p Commands"
    await until(app, pilot, lambda: footer() == usual)
    await press(app, pilot, "slash")
    await until(app, pilot, lambda: footer() == "⏎ Keep the search esc Clear it ^p Commands")
    await press(app, pilot, "escape", "3")
    await until(app, pilot, lambda: footer().startswith("⏎ Zoom w Weight o Stack c Colors l "))
    assert footer().endswith("? Help q Quit")
    await press(app, pilot, "1", "x")
    await until(app, pilot, lambda: footer().startswith("← Earlier → Later ⏎ Set esc Cancel"))


@on_live_screen(notifications=True)
async def test_a_trace_is_not_suspended(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "ctrl+z")
    said = "Can't be suspended while it traces"
    await until(app, pilot, lambda: said in " ".join(text_of(app)))


# Keys by what is read; None: nothing within Textual's time.
ESCAPED = {
    ("\x1bq",): ["escape", "q"],
    ("\x1b", "/"): ["escape", "slash"],
    ("a\x1b\x1bQ",): ["a", "escape", "escape", "Q"],
    ("\x1b[A", "\x1b", "[A", "\x1bOP"): ["up", "up", "f1"],
    ("\x1b", None, "[", "1"): ["escape", "left_square_bracket", "1"],
    ("\x1b\x1b[A",): ["escape", "up"],
}


@pytest.mark.parametrize("pieces", ESCAPED, ids=repr)
def test_escape_and_a_key_right_after_it_are_two_keys(pieces: tuple[str | None, ...]) -> None:
    parser = KeyParser()
    found: list[Message] = []
    for piece in pieces:
        if piece is None:
            parser._timeout_time = 0.0
            found += parser.tick()
        else:
            found += parser.feed(piece)
    assert [event.key for event in found if isinstance(event, Key)] == ESCAPED[pieces]


def test_the_driver_has_that_parser() -> None:
    assert linux_driver.XTermParser is KeyParser
