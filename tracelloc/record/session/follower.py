"""A thread that follows processes by ptrace(2): it is told when they fork, execute, load.

Whatever stops, stops for as long as it takes to tell, and for nothing else: signals are
passed on as they are, a process that was stopped by a signal stays stopped, and nobody
but us notices any of it. It never stops what runs.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from tracelloc.errors import TargetError
from tracelloc.record.kernel.captureconfig import STOP_SIGNAL
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.program import TracedProgram

_GROUP_STOPS: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_BIRTH_S: Final = 5.0
"""How long a child stays stopped, at most, until its parent's stop has been seen."""
_ORPHAN_S: Final = 0.1
"""How long it does if its parent seems to have ended."""
_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.02
_NUDGE_S: Final = 0.05
"""How often the thread is asked to end: it may be just about to wait."""


class Watcher(Protocol):
    """Who is told. Called on the follower's thread, while the thread concerned is stopped."""

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        """A thread has made a process, which has not run yet.

        ``shares``: it was made by vfork(2). Other ways to share memory don't show here.
        """

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """A process has begun another program, of which nothing has run yet.

        ``same_thread``: it was begun by the process's first thread.
        """

    def loaded(self, pid: int) -> bool:
        """The loader has finished what it was at; nothing new has run yet.

        Returns whether to go on following the process: only its end will be told otherwise.
        """

    def ended(self, pid: int, status: int) -> None:
        """A process has ended; ``status`` as of waitpid(2)."""

    def failed(self, failure: BaseException) -> None:
        """Following has come to an end: the kernel has let go of everything."""


class Follower:
    """Follows the processes that it is given, and lets go of them at its end.

    What they do before ``follow`` is told afterwards: whoever does it stays stopped.
    """

    def __init__(self) -> None:
        self._watchers: queue.SimpleQueue[Watcher | None] = queue.SimpleQueue()
        """Gets whoever is to be told; None: nobody will be."""
        self._ending = False
        self._known: set[int] = set()
        """Processes that are followed."""
        self._waiting: dict[int, tuple[int, float]] = {}
        """Processes that have stopped at their birth before their parent did: its PID, and when."""
        self._headless: set[int] = set()
        """Processes that are followed without their main thread, which had ended before."""
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._trouble: BaseException | None = None

    def launch(self, program: TracedProgram, *, children: bool) -> None:
        """Starts the program's process and follows it from before its first instruction.

        ``children``: those that it makes as well. Raises TargetError. The program waits for
        ``program.go``.
        """
        options = ptrace.OPTION_EXEC | (ptrace.OPTION_FORKS if children else 0)
        self._run(lambda: self._start(program, options))

    def attach(self, pid: int) -> None:
        """Follows a process and its children from here on. Raises TargetError."""
        self._run(lambda: self._seize_all(pid))

    def follow(self, watcher: Watcher) -> None:
        """Tells everything to this watcher from here on."""
        self._watchers.put(watcher)

    def _start(self, program: TracedProgram, options: int) -> None:
        program.start()
        self._known.add(program.pid)
        self._seize(program.pid, options)

    def _seize_all(self, pid: int) -> None:
        """All threads, those included that are made meanwhile by one not seized yet."""
        done: set[int] = set()
        self._known.add(pid)
        while new := Process(pid).thread_ids() - done:
            for thread_id in new:
                thread = Process(thread_id)
                if thread.tracer_id() == threading.get_native_id():
                    continue
                try:
                    self._seize(thread_id, ptrace.OPTION_EXEC | ptrace.OPTION_FORKS)
                except TargetError:
                    # Threads come and go; a main thread that has ended stays while others go on.
                    if thread.thread_id != thread_id:
                        self._headless.add(pid)
                    elif thread_id == pid or thread.exists():
                        raise
            done |= new

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

    def stop(self) -> None:
        """Ends following: the kernel lets go of everything."""
        self._ending = True
        self._watchers.put(None)
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
        watcher = None if self._ending else self._watchers.get()
        if watcher is not None:
            self._follow_on(watcher)

    def _follow_on(self, watcher: Watcher) -> None:
        while not self._ending:
            try:
                thread_id, status = self._next_change(watcher)
            except InterruptedError:
                continue
            except ChildProcessError:
                return
            try:
                self._handle(watcher, thread_id, status)
            except ProcessLookupError:
                # It may be killed at any time, upon which it is no longer there to be asked.
                continue
            except BaseException as failure:  # noqa: BLE001 - raised again by who is told
                watcher.failed(failure)
                return

    def _next_change(self, watcher: Watcher) -> tuple[int, int]:
        """Waits for it; meanwhile nobody stays stopped whose parent will never say so."""
        pause_s = _FIRST_PAUSE_S
        while self._waiting and not self._ending:
            thread_id, status = ptrace.wait(must_wait=False)
            if thread_id:
                return thread_id, status
            for child_id, (parent_id, since_s) in list(self._waiting.items()):
                # A parent that is not known has ended, or has made it a sibling (CLONE_PARENT).
                patience_s = _BIRTH_S if parent_id in self._known else _ORPHAN_S
                is_late = time.monotonic() - since_s > patience_s
                if is_late or Process(child_id).parent_pid() != parent_id:
                    self._adopt(watcher, child_id)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return ptrace.wait()

    def _adopt(self, watcher: Watcher, child_id: int) -> None:
        """Lets a child run whose parent was killed before it could report the fork."""
        parent_id, _ = self._waiting.pop(child_id)
        self._known.add(child_id)
        watcher.forked(parent_id, parent_id, child_id, shares=False)
        # It may have been killed, too.
        with suppress(ProcessLookupError):
            ptrace.resume(child_id)

    def _handle(self, watcher: Watcher, thread_id: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self._waiting.pop(thread_id, None)
            for child_id in [c for c, (parent, _) in self._waiting.items() if parent == thread_id]:
                self._adopt(watcher, child_id)
            ended = {pid for pid in self._headless if not Process(pid).exists()}
            self._headless -= ended
            for pid in self._known & (ended | {thread_id}):
                self._known.discard(pid)
                watcher.ended(pid, status)
            return
        number, event = os.WSTOPSIG(status), status >> 16
        if event == ptrace.Event.EXEC:
            same_thread = ptrace.event_message(thread_id) == thread_id
            watcher.executed(thread_id, same_thread=same_thread)
            ptrace.resume(thread_id)
        elif event in (ptrace.Event.FORK, ptrace.Event.VFORK, ptrace.Event.CLONE):
            child_id = ptrace.event_message(thread_id)
            self._handle_birth(watcher, thread_id, child_id, event)
            ptrace.resume(thread_id)
        elif event == ptrace.Event.STOP and number in _GROUP_STOPS:
            ptrace.listen(thread_id)
        elif event == ptrace.Event.STOP:
            self._handle_first_stop(thread_id)
        elif number == STOP_SIGNAL and ptrace.signal_code(thread_id) == ptrace.SI_KERNEL:
            pid = self._process_of(thread_id)
            if watcher.loaded(pid):
                ptrace.resume(thread_id)
            else:
                self._release(watcher, pid, thread_id)
        else:
            ptrace.resume(thread_id, number)

    def _handle_birth(self, watcher: Watcher, thread_id: int, child_id: int, event: int) -> None:
        """A thread has made another one, or a process; which may have stopped already."""
        if event == ptrace.Event.CLONE and Process(child_id).group_id() != child_id:
            return
        if child_id in self._known:  # it was late
            return
        self._known.add(child_id)
        pid = self._process_of(thread_id)
        shares = event == ptrace.Event.VFORK
        watcher.forked(pid, thread_id, child_id, shares=shares)
        if child_id in self._waiting:
            del self._waiting[child_id]
            # It may have been killed, which is no matter of its parent's.
            with suppress(ProcessLookupError):
                ptrace.resume(child_id)

    def _release(self, watcher: Watcher, pid: int, thread_id: int) -> None:
        """Follows a process no longer. It has one thread, as its program has not begun."""
        end_fd = os.pidfd_open(pid)
        ptrace.detach(thread_id)
        if Process(pid).parent_pid() == os.getpid():
            os.close(end_fd)  # we are told by wait
            return
        self._known.discard(pid)

        def await_end() -> None:
            select.select([end_fd], [], [])
            os.close(end_fd)
            watcher.ended(pid, 0)

        threading.Thread(target=await_end, name="released", daemon=True).start()

    def _process_of(self, thread_id: int) -> int:
        return thread_id if thread_id in self._known else Process(thread_id).group_id()

    def _handle_first_stop(self, thread_id: int) -> None:
        if thread_id in self._known or Process(thread_id).group_id() != thread_id:
            # Also whoever was stopped by a signal and is not any more.
            ptrace.resume(thread_id)
        else:
            self._waiting[thread_id] = Process(thread_id).parent_pid(), time.monotonic()
