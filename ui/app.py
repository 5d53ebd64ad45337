"""The application that shows a trace: receives pictures, and manages the screens."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.message import Message

from tracelloc.dataclass import dataclass
from tracelloc.errors import TracellocError
from tracelloc.text import printable
from tracelloc.ui.application import TerminalApp
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.lineview import LineView
from tracelloc.ui.live_screen import LiveScreen
from tracelloc.ui.picture import Picture
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.sourcescreen import SourceScreen
from tracelloc.ui.state import State
from tracelloc.ui.view import Journal, TraceSource

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
        self, source: TraceSource, *, interval_s: float | None = REFRESH_S,
        readers: Mapping[int, Callable[[], None]] | None = None, duration_s: float | None = None,
        warnings: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """``readers``: called when readable. ``interval_s`` None: snapshots only on demand."""
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
        severity = "error" if text.startswith("error") else "information"
        self.call_later(self.notify, printable(text), severity=severity, markup=False)

    def end(self, pid: int, how: str, stop: Callable[[], None]) -> None:
        """Calls ``stop`` but keeps the last picture. ``how``: `` (SIGTERM)``, empty if unknown."""
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


def failure_of(app: LiveApp) -> None:
    """Raises the exception that ended the application, if there was one."""
    if (failure := app.failure or app._exception) is not None:
        raise failure
    if app.return_code:
        raise TracellocError("the screen failed", hint="this is a bug")
