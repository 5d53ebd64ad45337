"""What all applications with a screen have in common: commands, readable colours, signals."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.screen import Screen

from tracelloc.dataclass import dataclass
from tracelloc.startup import not_ignored
from tracelloc.ui.driver import ContrastFilter, TerminalDriver, signal_colours
from tracelloc.ui.lineview import LIST_KEYS, OTHER_WORDS

# The command palette's content: what the keys of the screen below it do, by all their names.
_LISTS: Final = tuple(each.action for each in LIST_KEYS if each.key != "enter")
# Textual's own commands that are listed; others have keys already.
_OF_TEXTUAL: Final = ("Theme", "Screenshot")
_BY_OTHER_WORDS: Final = 0.5  # Score of commands that are found by their description or a synonym


@dataclass(frozen=True, slots=True)
class Command:
    """One line of the command palette: an action and the key that also runs it."""

    word: str  # What the action does, in a word
    title: str  # The key that does the same, and the word
    help: str  # Sentence about the action
    run: Callable[[], Any]
    others: str = ""  # Synonyms

    def is_called(self, text: str) -> bool:
        words = f"{self.help} {self.others}".lower().split()
        return any(word.strip("(,;:").startswith(text.lower()) for word in words)


def commands_of(screen: Screen[Any]) -> Iterator[Command]:
    """Yields a command for each action of a screen's keys, then those of Textual."""
    app, seen = screen.app, set()
    # Of an action's keys the one that the footer shows.
    bindings = sorted(screen.active_bindings.values(), key=lambda each: not each.binding.show)
    for namespace, binding, enabled, tooltip in bindings:
        action, help_text = binding.action.removeprefix("app."), tooltip or ""
        is_ours = bool(help_text) and not binding.system and not action.startswith(_LISTS)
        if action in seen or not enabled or not is_ours or "palette" in action:
            continue
        seen.add(action)
        word = binding.description or help_text
        title = f"{app.get_key_display(binding):<5} {word}"
        run: Callable[[], Any] = partial(app.run_action, binding.action, namespace)
        yield Command(word, title, help_text, run, OTHER_WORDS.get(action, ""))
    for title, help_text, run, _ in App.get_system_commands(app, screen):
        if title in _OF_TEXTUAL:
            yield Command(title, f"{'':<5} {title}", help_text, run)


class Commands(Provider):
    """Finds commands by the text that is typed into the palette."""

    async def discover(self) -> Hits:
        for each in commands_of(self.screen):
            yield DiscoveryHit(each.title, each.run, help=each.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for each in commands_of(self.screen):
            score = max(matcher.match(each.word), _BY_OTHER_WORDS * each.is_called(query.strip()))
            if score > 0:
                yield Hit(score, each.title, each.run, help=each.help)


ResultT = TypeVar("ResultT")


def prepare_screens(*, plain: bool) -> None:
    """Call this before the first screen. ``plain``: all are plain, in ASCII, for screen readers."""
    TerminalApp.is_plain = TerminalDriver.is_plain = plain
    for name in ("COLUMNS", "LINES"):
        # The terminal knows its size, and tells when it changes; these don't.
        os.environ.pop(name, None)


class TerminalApp(App[ResultT]):
    """An application with commands, whose text is readable in each theme."""

    is_plain: ClassVar[bool] = False  # Whether there are no boxes and no animation
    CSS_PATH = "app.tcss"
    TITLE = "tracelloc"
    COMMANDS = {Commands}  # noqa: RUF012 - as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "command_palette", "Commands", tooltip="Commands and themes"),
    ]

    def __init__(self) -> None:
        super().__init__(driver_class=TerminalDriver)
        self._filters.append(ContrastFilter())  # After the application's own
        self.set_class(self.is_plain, "plain")
        if self.is_plain:
            self.animation_level = "none"

    def on_mount(self) -> None:
        self.watch_theme()

    def watch_theme(self) -> None:
        """Makes styles in red, green and yellow those of the theme's texts."""
        colours = signal_colours(self.current_theme, self.ansi_theme)
        self.ansi_theme_dark = self.ansi_theme_light = colours

    def get_key_display(self, binding: Binding) -> str:
        is_return = TerminalDriver.is_plain and binding.key == "enter"
        return "Enter" if is_return else super().get_key_display(binding)

    def quit_by_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in not_ignored((signal.SIGTERM, signal.SIGHUP)):
            loop.add_signal_handler(number, self.exit)


class ScreenApp(TerminalApp[ResultT]):
    """An application that only shows one screen; its result is that of the screen."""

    def __init__(self, screen: Screen[ResultT]) -> None:
        super().__init__()
        self._only = screen

    def on_mount(self) -> None:
        self.quit_by_signals()
        self.push_screen(self._only, self.exit)
