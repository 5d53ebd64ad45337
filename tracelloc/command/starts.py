"""How a trace begins, what ends it, and whose signals are whose."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tracelloc.caller import Caller, caller, effective_user
from tracelloc.capture import system
from tracelloc.command.options import Options
from tracelloc.target.procfs import Process
from tracelloc.target.traceable import open_target
from tracelloc.text import printable
from tracelloc.tracing.config import TraceConfig
from tracelloc.tracing.follower import Follower
from tracelloc.tracing.launch import Launch
from tracelloc.tracing.program import Program
from tracelloc.tracing.session import Session, attach_to

Say = Callable[[str], None]


class Start(Protocol):
    """One way of beginning a trace."""

    @property
    def pass_on(self) -> Callable[[int], None] | None:
        """Where signals go that would end us; None: they end tracing."""

    def begin(self, config: TraceConfig, say: Say) -> Session:
        """Traces. Raises TracellocError."""

    def stop_following(self) -> None:
        """Lets go of what is followed; probes stay. May be called twice."""

    def finish(self) -> int:
        """Once nothing is traced any more. Returns the exit status."""


class AttachStart:
    """A process that runs."""

    pass_on = None

    def __init__(self, process: Process) -> None:
        self._process = process
        self._follower: Follower | None = None

    def begin(self, config: TraceConfig, say: Say) -> Session:
        """Attaches. Raises TracellocError."""
        session = attach_to(self._process, config, say)
        if config.follow:
            self._follower = Follower()
            try:
                self._follower.attach(self._process.pid)
            except BaseException:
                self._follower.stop()
                session.close()
                raise
            self._follower.follow(session)
        return session

    def stop_following(self) -> None:
        """Lets go of the process and its children."""
        if self._follower is not None:
            self._follower.stop()

    def finish(self) -> int:
        """It runs on as it did before."""
        return 0


class LaunchStart:
    """A program that is started, and decides when to end: signals are for it."""

    def __init__(self, command: Sequence[str], who: Caller, file_limit: system.FileLimit) -> None:
        """``who`` runs it, with this limit of open files."""
        self._name = printable(command[0])
        self._program = Program(command, who, file_limit)
        self._launch: Launch | None = None
        self._early_signal: int | None = None
        """One that came before there was a process."""

    def begin(self, config: TraceConfig, say: Say) -> Session:
        """Starts it. Raises TracellocError; none of it has run then."""
        launch = self._launch = Launch(self._program, config, say)
        try:
            if self._early_signal is not None:
                self.pass_on(self._early_signal)
            launch.begin()
        except BaseException:
            launch.session.close()
            launch.finish()
            raise
        return launch.session

    def pass_on(self, number: int) -> None:
        """The terminal sends its own signals to the program as well."""
        if not self._program.pid:
            self._early_signal = number
        elif number == signal.SIGTERM or not _is_from_terminal():
            with suppress(ProcessLookupError):
                os.kill(self._program.pid, number)

    def stop_following(self) -> None:
        """Lets go of its children."""
        if self._launch is not None:
            self._launch.stop_following()

    def finish(self) -> int:
        """Waits for its end. Returns its exit status."""
        if self._launch is None:
            return 0
        if self._program.is_running():
            message = f"not tracing any more; {self._name} runs on, process {self._program.pid}"
            print(f"tracelloc: {message}", file=sys.stderr, flush=True)
        return self._launch.finish()


def start_of(options: Options) -> Start:
    """How the options say that tracing begins. Raises TracellocError."""
    if options.pid is not None:
        process = open_target(options.pid)
        system.check_all()
        system.raise_file_limit()
        return AttachStart(process)
    system.check_all()
    file_limit = system.raise_file_limit()
    who = effective_user() if options.as_root else caller()
    return LaunchStart(options.command, who, file_limit)


def _is_from_terminal() -> bool:
    """Whether ^C on the terminal is for us, and what we have started."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
