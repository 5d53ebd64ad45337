"""The Textual application: receives pictures and signals, and manages the screens."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.message import Message
from textual.screen import Screen

from tracelloc.dataclass import dataclass
from tracelloc.errors import TracellocError
from tracelloc.startup import not_ignored
from tracelloc.text import printable
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.driver import TerminalDriver, keep_readable, signal_colours
from tracelloc.ui.lineview import LIST_KEYS, OTHER_WORDS, LineView
from tracelloc.ui.live_screen import LiveScreen
from tracelloc.ui.picture import Picture
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.sourcescreen import SourceScreen
from tracelloc.ui.state import State
from tracelloc.ui.view import Journal, TraceSource

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


def show_plainly() -> None:
    """Makes all screens plain, in ASCII, for screen readers."""
    TerminalApp.is_plain = TerminalDriver.is_plain = True


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
        keep_readable(self)
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


REFRESH_S = 0.5  # Time between two snapshots that the screen shows


@dataclass
class PictureReady(Message):
    """A picture is ready to be drawn."""

    picture: Picture

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, PictureReady)


class LiveApp(TerminalApp[int]):
    """The application that shows one trace. Its result: a PID to trace next, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "ask('leave')", "Quit", show=False, priority=True, tooltip="Quit"),
        Binding("ctrl+z", "suspend_process", show=False, priority=True, tooltip="Suspend"),
    ]

    def __init__(
        self,
        source: TraceSource,
        *,
        interval_s: float | None = REFRESH_S,
        readers: Mapping[int, Callable[[], None]] | None = None,
        duration_s: float | None = None,
        warnings: Iterable[str] = (),
    ) -> None:
        """``readers``: called when their descriptors become readable. If ``interval_s`` is None,
        snapshots are taken only on demand.
        """
        super().__init__()
        self.journal = Journal(warnings)
        self.refresher = Refresher(source, self.journal, self._tell, self._fail, interval_s)
        self.state = State(self, source, self.refresher)
        self.failure: BaseException | None = None  # Why it ended, if it could not go on
        self._source = source
        self._readers = dict(readers or {})
        self._duration_s = duration_s

    def _tell(self, picture: Picture) -> None:
        """Posts a picture from the refresher's thread; it is dropped once the loop is gone."""
        try:
            self.post_message(PictureReady(picture))
        except RuntimeError:
            self.refresher.shown()

    def get_default_screen(self) -> LiveScreen:
        return LiveScreen(self.state, self._source.facts)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor, callback in self._readers.items():
            loop.add_reader(descriptor, callback)
        if self._duration_s is not None:
            self.set_timer(self._duration_s, self.exit)
        self.refresher.start(self.state.settings)

    def on_unmount(self) -> None:
        """Stops the refresher before anything that it uses is closed."""
        loop = asyncio.get_running_loop()
        for descriptor in self._readers:
            loop.remove_reader(descriptor)
        self.refresher.close()

    def on_picture_ready(self, message: PictureReady) -> None:
        self.state.take_picture(message.picture)
        began_s = time.perf_counter()
        try:
            # The screen below a dialog stays visible; those below a full screen don't.
            for screen in reversed(self.screen_stack):
                if isinstance(screen, LiveScreen | DetailScreen | SourceScreen):
                    if screen.is_mounted:
                        screen.show(message.picture)
                    break
        finally:
            self.call_after_refresh(self._drawn, message.picture, began_s)

    def pop_screen(self) -> AwaitComplete:
        """Removes the top screen; its pending draw callback is lost, so the refresher is told."""
        self.refresher.shown()
        return super().pop_screen()

    def _drawn(self, picture: Picture, began_s: float) -> None:
        drawing_s = time.perf_counter() - began_s
        self.journal.costs[picture.settings.view.name].append((picture.computing_s, drawing_s))
        self.refresher.shown()

    def _fail(self, failure: BaseException) -> None:
        """Keeps the exception of the refresher's thread and exits: no more pictures will come."""
        self.failure = failure
        self.call_later(self.exit)

    def _print_error_renderables(self) -> None:
        """Prints no traceback: Textual's would contain names that come from the target."""
        self._exit_renderables.clear()

    def say(self, text: str) -> None:
        """Adds a message to the log and shows it briefly. Any thread may call this."""
        self.journal.say(text)
        error = text.startswith("error")
        self.call_later(
            self.notify, printable(text), severity="error" if error else "information", markup=False
        )

    def end(self, pid: int, how: str, stop: Callable[[], None]) -> None:
        """Calls ``stop`` after the target has ended, and keeps the last picture on the screen.

        ``how``: `` (SIGTERM)``, empty if unknown.
        """
        self.state.ended = f"process ended{how}"
        self.journal.say(f"process {pid} has ended{how}")
        self.refresher.stop_snapshots()
        self.refresher.run_job(stop)
        self.refresher.ask(self.state.settings, tick=True)

    def action_ask(self, what: str, *arguments: Any) -> None:
        getattr(self.state, what)(*arguments)

    def action_suspend_process(self) -> None:
        if self.state.player is None and not self.state.ended:
            self.notify("Can't be suspended while it traces: space freezes the screen", timeout=3)
        else:
            super().action_suspend_process()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # Home and End are also keys of inputs and of the chart.
        return action != "play" or isinstance(self.focused, LineView)

    def action_play(self, what: str, *arguments: Any) -> None:
        if self.state.player is not None:
            getattr(self.state.player, what)(*arguments)


class RecordedApp(LiveApp):
    """The application that shows a recording; there is nothing to detach from."""

    def on_mount(self) -> None:
        self.quit_by_signals()


class ScreenApp(TerminalApp[ResultT]):
    """An application that only shows one screen; its result is that of the screen."""

    def __init__(self, screen: Screen[ResultT]) -> None:
        super().__init__()
        self._only = screen

    def on_mount(self) -> None:
        self.quit_by_signals()
        self.push_screen(self._only, self.exit)


def failure_of(app: LiveApp) -> None:
    """Raises the exception that ended the application, if there was one."""
    failure = app.failure or app._exception
    if failure is not None:
        raise failure
    if app.return_code:
        raise TracellocError("the screen failed", hint="this is a bug")
