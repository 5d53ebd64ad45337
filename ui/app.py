"""The application around the live view: pictures in, signals in, screens on top."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from tracelloc.errors import TracellocError
from tracelloc.text import printable
from tracelloc.ui.contrast import keep_readable
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.driver import TerminalDriver
from tracelloc.ui.live_screen import LiveScreen, live_keys
from tracelloc.ui.output import OutputView
from tracelloc.ui.picture import Picture
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.sourcescreen import SourceScreen
from tracelloc.ui.state import State
from tracelloc.ui.view import Journal, Source

REFRESH_S = 0.5
"""How often the screen is made new."""


@dataclass
class PictureReady(Message):
    """A picture is ready to be drawn."""

    picture: Picture

    def can_replace(self, message: Message) -> bool:
        """Lets only the newest picture be drawn."""
        return isinstance(message, PictureReady)


@dataclass
class Failed(Message):
    """The refresher has failed: no more pictures come."""

    failure: BaseException


class LiveApp(App[int]):
    """Shows one source. Its result is the PID of another process to trace, if one is chosen."""

    CSS_PATH = "app.tcss"
    TITLE = "tracelloc"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "ask('leave')", "Quit", show=False, priority=True, tooltip="Quit"),
        Binding("ctrl+p", "command_palette", "Palette", show=False, tooltip="Commands and themes"),
    ]

    def __init__(
        self,
        source: Source,
        *,
        interval_s: float | None = REFRESH_S,
        readers: Mapping[int, Callable[[], None]] | None = None,
        duration_s: float | None = None,
        warnings: Iterable[str] = (),
    ) -> None:
        """``readers`` are called when their descriptors can be read. Without ``interval_s`` the
        screen is made new on demand only.
        """
        super().__init__(driver_class=TerminalDriver)
        keep_readable(self)
        self.journal = Journal(warnings)
        self.refresher = Refresher(
            source,
            self.journal,
            lambda picture: self._tell(PictureReady(picture)),
            lambda failure: self._tell(Failed(failure)),
            interval_s,
        )
        self.state = State(self, source, self.refresher)
        self.failure: BaseException | None = None
        """Why it ended, if it could not go on."""
        self._source = source
        self._readers = dict(readers or {})
        self._duration_s = duration_s

    def _tell(self, message: PictureReady | Failed) -> None:
        """Posts a message from the refresher's thread; it is dropped once the loop is gone."""
        try:
            self.post_message(message)
        except RuntimeError:
            self.refresher.shown()

    def get_default_screen(self) -> LiveScreen:
        """The live view."""
        return LiveScreen(self.state, self._source.facts)

    def on_mount(self) -> None:
        """Begins to refresh, and to listen."""
        loop = asyncio.get_running_loop()
        for descriptor, callback in self._readers.items():
            loop.add_reader(descriptor, callback)
        if self._duration_s is not None:
            self.set_timer(self._duration_s, self.exit)
        self.refresher.start(self.state.settings)

    def on_unmount(self) -> None:
        """Ends the refresher before anything it looks at is closed."""
        loop = asyncio.get_running_loop()
        for descriptor in self._readers:
            loop.remove_reader(descriptor)
        self.refresher.close()

    def on_picture_ready(self, message: PictureReady) -> None:
        """Draws the picture on every screen that shows some of it."""
        self.state.picture = message.picture
        began_s = time.perf_counter()
        try:
            # Dialogs leave what is below them visible, a stack in full doesn't.
            for screen in reversed(self.screen_stack):
                if isinstance(screen, LiveScreen | DetailScreen | SourceScreen):
                    if screen.is_mounted:
                        screen.show(message.picture)
                    break
        finally:
            self.call_after_refresh(self._drawn, message.picture, began_s)

    def pop_screen(self) -> AwaitComplete:
        """Takes the top screen away, and with it what it was to do once it is drawn."""
        self.refresher.shown()
        return super().pop_screen()

    def _drawn(self, picture: Picture, began_s: float) -> None:
        """The picture is on its way to the terminal."""
        drawing_s = time.perf_counter() - began_s
        self.journal.note_cost(picture.settings.view, picture.took_s, drawing_s)
        self.refresher.shown()

    def on_failed(self, message: Failed) -> None:
        """Nothing new would come: ends, and leaves the reason behind."""
        self.failure = message.failure
        self.exit()

    def _print_error_renderables(self) -> None:
        """Textual would print everything that it knows, names of the target included."""
        self._exit_renderables.clear()

    def say(self, text: str) -> None:
        """A message for the log and, for a moment, the screen. From any thread."""
        self.journal.say(text)
        error = text.startswith("error")
        self.call_later(
            self.notify, printable(text), severity="error" if error else "information", markup=False
        )

    def end(self, why: str, stop: Callable[[], None]) -> None:
        """The target is gone: ``stop`` is called, a last picture made, and that stays."""
        self.state.ended = "ended: final state"
        self.journal.say(why)
        self.refresher.stand()
        self.refresher.do(stop)
        self.refresher.ask(self.state.settings, tick=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables keys of the application while the program gets them."""
        if isinstance(self.focused, OutputView) and self.focused.is_typing:
            return False
        return super().check_action(action, parameters)

    def action_ask(self, what: str, *arguments: Any) -> None:
        """Has the state do something."""
        getattr(self.state, what)(*arguments)

    def action_play(self, what: str, *arguments: Any) -> None:
        """Has the player of a recording do something."""
        if self.state.player is not None:
            getattr(self.state.player, what)(*arguments)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that a key does, and Textual's own."""
        yield from super().get_system_commands(screen)
        if not isinstance(screen, LiveScreen):
            return
        for binding in live_keys(self.state):
            run = partial(screen.call_later, screen.run_action, binding.action)
            yield SystemCommand(binding.description, binding.tooltip, run)


def failure_of(app: LiveApp) -> None:
    """Raises what ended the application, if something did."""
    failure = app.failure or app._exception
    if failure is not None:
        raise failure
    if app.return_code:
        raise TracellocError("the screen could not go on", hint="this is a bug")
