"""The command with a screen: choose a process, trace it, show it, end as every run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from textual.app import App

from tracelloc.caller import caller
from tracelloc.capture import system
from tracelloc.command.messages import Messages
from tracelloc.command.options import Options
from tracelloc.command.tracer import Tracer
from tracelloc.errors import TracellocError
from tracelloc.target.procfs import base_name
from tracelloc.target.traceable import open_target
from tracelloc.ui.app import LiveApp, failure_of, make_app
from tracelloc.ui.driver import TerminalDriver
from tracelloc.ui.picker import PickerScreen
from tracelloc.ui.source import Facts, LiveSource
from tracelloc.ui.state import LEFT_TO_PICKER


class PickerApp(App[int]):
    """The list of processes; its result is what was chosen."""

    CSS_PATH = "app.tcss"
    TITLE = "tracelloc"

    def __init__(self, note: str = "") -> None:
        super().__init__(driver_class=TerminalDriver)
        self._note = note

    def on_mount(self) -> None:
        """Shows the list; a signal leaves it like Esc does."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self.push_screen(PickerScreen(note=self._note), self.exit)


class ScreenTracer(Tracer):
    """A run whose reports are a screen."""

    app: LiveApp | None = None
    wants_picker = False
    """The user has asked for another process."""

    def _make_messages(self) -> Messages:
        return _ScreenMessages(self)

    def _loop(self, pidfd: int, wakeup: socket.socket) -> None:
        session = self._session

        def woken() -> None:
            wakeup.recv(4096)
            if self._ending:
                app.exit()
            if self._set_mark:
                self._set_mark = False
                app.state.set_mark()
                app.refresher.do(lambda: self._mark(self._snapshot()))
            if self._write_files:
                self._write_files = False
                app.refresher.do(lambda: self._write_outputs(self._snapshot()))

        def ended() -> None:
            asyncio.get_running_loop().remove_reader(pidfd)
            app.end(f"process {session.root.target.pid} has ended", session.stop)

        app = self.app = make_app(
            LiveSource(session, self._namer, self._facts(), caller(), self._watch.suppressions),
            readers={pidfd: ended, wakeup.fileno(): woken},
            duration_s=self._options.duration_s,
            warnings=self._warnings,
        )
        if self._ending:
            return
        try:
            result = app.run()
        finally:
            self.app = None
        self.wants_picker = result == LEFT_TO_PICKER
        failure_of(app)

    def _facts(self) -> Facts:
        found = self._session.root.found
        paths = dict.fromkeys(base_name(allocator.file) for allocator in found)
        return Facts(
            allocators=tuple(paths),
            functions=tuple(
                f"{allocator.family} in {allocator.file}: {', '.join(allocator.functions)}"
                for allocator in found
                if allocator.functions
            ),
            method=self._session.method.value,
            buffer_bytes=self._options.events_size_bytes,
        )


class _ScreenMessages(Messages):
    """On the screen while there is one."""

    def __init__(self, tracer: ScreenTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def say(self, message: str) -> None:
        app = self._tracer.app
        if app is not None and app.is_running:
            app.say(message)
        else:
            super().say(message)

    def say_aside(self, message: str) -> None:
        self.say(message)


def run_screen(options: Options) -> int:
    """Traces with a screen until the user has had enough. Raises TracellocError."""
    system.check_all()
    system.raise_file_limit()
    for name in ("COLUMNS", "LINES"):
        # The terminal knows its size, and tells when it changes; these don't.
        os.environ.pop(name, None)
    pid, note = options.pid, ""
    while True:
        if pid is None:
            pid = PickerApp(note).run()
            if pid is None:
                return 0
        try:
            tracer = ScreenTracer(open_target(pid), options)
            tracer.run()
        except TracellocError as error:
            if options.pid is not None:
                raise
            # Whoever chose from the list is shown the list again, and why.
            pid, note = None, str(error)
            continue
        if not tracer.wants_picker:
            return 0
        pid, note = None, ""
