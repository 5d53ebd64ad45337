"""A thread that follows processes by ptrace(2): it is told when they fork, execute, load.

Whatever stops, stops for as long as it takes to tell, and for nothing else: signals are
passed on as they are, a process that was stopped by a signal stays stopped, and nobody
but us notices any of it. It never stops what runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from tracelloc import ptrace
from tracelloc.capture import STOP_SIGNAL
from tracelloc.errors import TargetError
from tracelloc.procfs import Process
from tracelloc.program import Program

_GROUP_STOPS: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NUDGE_S: Final = 0.05
"""How often the thread is asked to end: it may be just about to wait."""


class Watcher(Protocol):
    """Who is told. Called on the follower's thread, while the process is stopped."""

    def executed(self, pid: int) -> None:
        """It has begun another program, of which nothing has run yet."""

    def loaded(self, pid: int) -> None:
        """The loader has finished what it was at; nothing new has run yet."""

    def ended(self, pid: int, status: int) -> None:
        """It has ended; ``status`` as of waitpid(2)."""


class Follower:
    """Follows the processes that it is given, and does not follow them any more at its end."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._ending = False
        self._released: set[int] = set()
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._trouble: BaseException | None = None

    def launch(self, program: Program) -> None:
        """Starts the program's process and follows it from before its first instruction.

        Raises TargetError. The program waits for ``program.go``.
        """
        self._run(lambda: self._start(program))

    def _start(self, program: Program) -> None:
        program.start()
        self._seize(program.pid, ptrace.OPTION_EXEC)

    def _seize(self, pid: int, options: int) -> None:
        try:
            ptrace.seize(pid, options)
        except OSError as error:
            raise TargetError(
                f"process {pid} can't be followed: {error.strerror}",
                hint="is a debugger or strace attached to it?",
            ) from error

    def _run(self, begin: Callable[[], None]) -> None:
        # A handler, so that waiting is interrupted; the signal is ignored by itself.
        signal.signal(STOP_SIGNAL, lambda _number, _frame: None)
        self._thread = threading.Thread(target=self._follow, args=(begin,), name="follower")
        self._thread.daemon = True
        self._thread.start()
        self._begun.wait()
        if self._trouble is not None:
            raise self._trouble

    def release(self, pid: int) -> None:
        """Lets a process go when the watcher returns; to be called by the watcher."""
        self._released.add(pid)

    def stop(self) -> None:
        """Ends following: the kernel lets go of everything."""
        self._ending = True
        thread = self._thread
        while thread is not None and thread.is_alive():
            assert thread.ident is not None
            with suppress(ProcessLookupError):
                signal.pthread_kill(thread.ident, STOP_SIGNAL)
            thread.join(_NUDGE_S)

    def _follow(self, begin: Callable[[], None]) -> None:
        try:
            begin()
        except BaseException as error:  # noqa: BLE001 - raised again by who is waiting
            self._trouble = error
            self._ending = True
        self._begun.set()
        while not self._ending:
            try:
                thread_id, status = ptrace.wait()
            except InterruptedError:
                continue
            except ChildProcessError:
                return
            # It may be killed at any time, upon which it is no longer there to be asked.
            with suppress(ProcessLookupError):
                self._handle(thread_id, status)

    def _handle(self, thread_id: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self._watcher.ended(thread_id, status)
            return
        number, event = os.WSTOPSIG(status), status >> 16
        if event == ptrace.Event.EXEC:
            self._watcher.executed(thread_id)
            self._go_on(thread_id)
        elif event == ptrace.Event.STOP and number in _GROUP_STOPS:
            ptrace.listen(thread_id)
        elif event:
            self._go_on(thread_id)
        elif number == STOP_SIGNAL and ptrace.signal_code(thread_id) == ptrace.SI_KERNEL:
            self._watcher.loaded(Process(thread_id).group_id())
            self._go_on(thread_id)
        else:
            self._go_on(thread_id, number)

    def _go_on(self, thread_id: int, signal_number: int = 0) -> None:
        if thread_id in self._released:
            self._released.discard(thread_id)
            ptrace.detach(thread_id, signal_number)
            # What was launched is still our child; its end is not for this thread to see.
            self._ending = True
        else:
            ptrace.resume(thread_id, signal_number)
