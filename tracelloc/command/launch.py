"""``tracelloc -- CMD``: a program that is traced from its first allocation.

Its process is followed until its libraries are mapped and probed, before any of its code
has run but the loader's; from then on nothing but the probes is left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

from tracelloc.caller import caller, effective_user
from tracelloc.capture import system
from tracelloc.command.familytracer import FamilyTracer
from tracelloc.command.options import Options
from tracelloc.command.tracer import Tracer
from tracelloc.errors import TracellocError
from tracelloc.target.procfs import Process
from tracelloc.text import printable
from tracelloc.tracing.family import FamilySession
from tracelloc.tracing.follower import Follower
from tracelloc.tracing.program import Program
from tracelloc.tracing.session import Session


class Launch:
    """Brings a program to where it is traced. The follower tells it how far it is."""

    def __init__(self, program: Program, *, children: bool) -> None:
        """Makes the waiting process. Raises TracellocError."""
        self.program = program
        self.follower = Follower(self)
        self._session: Session | None = None
        self._there = threading.Event()
        self._trouble: BaseException | None = None
        self.follower.launch(self.program, children=children)

    def begin(self, session: Session) -> None:
        """Lets it begin, and waits until it is traced. Raises TracellocError."""
        self._session = session
        session.start(waiting=True)
        self.program.go()
        self._there.wait()
        if self._trouble is not None:
            raise self._trouble
        session.begin_watch()

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        """See ``follower.Watcher``."""
        if isinstance(self._session, FamilySession):
            self._session.forked(pid, thread_id, child_pid, shares=shares)

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """See ``follower.Watcher``."""
        assert self._session is not None
        if isinstance(self._session, FamilySession):
            self._session.executed(pid, same_thread=same_thread)
        else:
            self._session.see_program()
        if pid == self.program.pid and not self._session.root.has_loader:
            # All that it consists of is there.
            self.loaded(pid)

    def loaded(self, pid: int) -> None:
        """See ``follower.Watcher``."""
        assert self._session is not None
        try:
            if isinstance(self._session, FamilySession):
                self._session.loaded(pid)
                if pid != self.program.pid or self._there.is_set():
                    return
                self._session.root.check_allocators()
            else:
                self._session.see_libraries()
                self.follower.release(pid)
        except TracellocError as error:
            self._trouble = error
            # None of its own code has run, and none will.
            with suppress(ProcessLookupError):
                os.kill(self.program.pid, signal.SIGKILL)
        self._there.set()

    def ended(self, pid: int, status: int) -> None:
        """See ``follower.Watcher``."""
        if isinstance(self._session, FamilySession):
            self._session.ended(pid, status)
        if pid == self.program.pid:
            self.program.note_end(status)
            self._there.set()

    def failed(self, failure: BaseException) -> None:
        """See ``follower.Watcher``."""
        if isinstance(self._session, FamilySession):
            self._session.failed(failure)
        self._trouble = failure
        self._there.set()

    def finish(self) -> int:
        """Waits until the program has ended. Returns its exit status."""
        self.follower.stop()
        self.program.abandon()
        return self.program.wait()


class Launching:
    """What a run that begins with a program does differently: it ends with it."""

    _launch: Launch
    _session: Session

    def _start(self) -> None:
        self._launch.begin(self._session)

    def _note_end(self, number: int, _frame: object) -> None:
        """Signals are the program's, which decides when to end.

        The terminal sends its own to the program as well.
        """
        if number == signal.SIGTERM or not _is_from_terminal():
            with suppress(ProcessLookupError):
                os.kill(self._launch.program.pid, number)


class LaunchTracer(Launching, Tracer):
    """A program alone."""

    def __init__(self, launch: Launch, options: Options) -> None:
        super().__init__(Process(launch.program.pid), options)
        self._launch = launch


class LaunchFamilyTracer(Launching, FamilyTracer):
    """A program and its children."""

    def __init__(self, launch: Launch, options: Options) -> None:
        super().__init__(Process(launch.program.pid), options)
        self._launch = launch
        self._follower = launch.follower


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


def run_command(options: Options) -> int:
    """Traces a program from its start. Raises TracellocError.

    Returns its exit status, or ours if a rule was broken.
    """
    system.check_all()
    file_limit = system.raise_file_limit()
    who = effective_user() if options.as_root else caller()
    launch = Launch(Program(options.command, who, file_limit), children=options.follow)
    try:
        tracer = (LaunchFamilyTracer if options.follow else LaunchTracer)(launch, options)
        tracer.run()
    except BaseException:
        launch.finish()
        raise
    if launch.program.is_running():
        name = printable(options.command[0])
        message = f"not tracing any more; {name} runs on, process {launch.program.pid}"
        print(f"tracelloc: {message}", file=sys.stderr, flush=True)
    status = launch.finish()
    return tracer.exit_status or status
