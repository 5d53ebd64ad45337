"""Follows processes by ptrace(2), on a thread: the kernel reports forks, execs and loads.

A thread that stops stays stopped only while the watcher is called. The follower passes signals on
unchanged, and a process that was stopped by a signal stays stopped. Other processes notice
nothing, and the follower stops a running thread only on request (``hold``).
"""

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol

from tracelloc.errors import TargetError
from tracelloc.record.kernel.captureconfig import STOP_SIGNAL
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.urgency import Urgency, claim, relax
from tracelloc.record.session.program import CaughtProgram, TracedProgram
from tracelloc.record.session.stoppedthreads import ExitStops, StoppedThreads, resume_all

# How long a child stays stopped, at most, while its parent's fork event is awaited.
_BIRTH_S: Final = 5.0
_ORPHAN_S: Final = 0.1  # How long, where the parent seems to have ended
_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.02
# How often the stop signal is repeated: the thread may be just about to wait.
_NUDGE_S: Final = 0.05


UseThreads = Callable[[Sequence[ThreadRegisters]], None]  # Gets stopped threads of a process


class Watcher(Protocol):
    """Receives a follower's events, on its thread, while the target's thread is stopped."""

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        """Called when a thread has created a process, which has not run yet.

        ``shares``: whether by vfork(2). Other ways to share memory are not visible here.
        """

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """Called when a process has executed a program, before its first instruction.

        ``same_thread``: whether the process's main thread executed the program.
        """

    def loaded(self, pid: int) -> bool:
        """Called when the dynamic linker has changed mappings; no new code has run yet.

        Returns whether to go on following the process. If not, only the process's end is reported.
        """

    def trapped(self, thread_id: int) -> bool | None:
        """Called when a thread has stopped at a breakpoint. Returns as ``Session.trapped``."""

    def exiting(self, pid: int, threads: Sequence[ThreadRegisters]) -> None:
        """Called when a process ends by itself; threads and memory stay until this returns."""

    def ended(self, pid: int, status: int) -> None:
        """Called when a process has ended; ``status`` is that of waitpid(2)."""

    def failed(self, failure: BaseException) -> None:
        """Called when following has failed: the kernel has detached from all processes."""


class Follower:
    """Follows processes by ptrace(2), on a thread of its own, until ``stop``.

    Events before ``follow`` is called are reported later: threads stay stopped until then.
    """

    def __init__(self) -> None:
        # Gets the watcher to call; None: there will be none
        self._watchers: queue.SimpleQueue[Watcher | None] = queue.SimpleQueue()
        self._ending = False
        self._known: set[int] = set()  # Processes that are followed
        # Running processes to follow as well, and who is to be told
        self._joining: queue.SimpleQueue[tuple[int, Future[None]]] = queue.SimpleQueue()
        # Processes whose threads are to be stopped, what to do then, and who is to be told
        self._holding: queue.SimpleQueue[tuple[int, UseThreads, Future[None]]] = queue.SimpleQueue()
        # Children that stopped before their parent's fork event: the parent's PID, and when
        self._waiting: dict[int, tuple[int, float]] = {}
        self._headless: set[int] = set()  # Followed processes whose main thread had ended before
        self._paused: set[int] = set()  # Threads that a signal has stopped, until their next one
        self._thread: threading.Thread | None = None
        # The threads that stop at their ends; None: they don't
        self._exits: ExitStops | None = None
        self._has_children = True  # Whether children are followed, too
        self._begun = threading.Event()
        self._trouble: BaseException | None = None

    def launch(
        self, program: TracedProgram | CaughtProgram, *, children: bool, exits: bool = False
    ) -> None:
        """Starts the program's process and follows it from before its first instruction.

        ``children``: whether to follow child processes, too; or ``exits``: whether the program
        stops at its end. The program waits for ``program.go``. Raises TargetError.
        """
        options = ptrace.OPTION_EXEC | (ptrace.OPTION_FORKS if children else 0)
        if exits:
            options |= ptrace.OPTION_EXITS | ptrace.OPTION_CALLS
            self._exits = ExitStops()
        self._has_children = children
        self._run(lambda: self._start(program, options))

    def attach(self, pid: int) -> None:
        """Follows a running process and its children, as the first one. Raises TargetError."""
        self._run(lambda: self._seize_all(pid))

    def join(self, pid: int) -> None:
        """Follows one more running process and its children. Raises TargetError."""
        done: Future[None] = Future()
        self._joining.put((pid, done))
        self._await(done)

    def hold(self, pid: int, use: UseThreads) -> None:
        """Calls ``use`` on the follower's thread while all threads of a process are stopped.

        The process must have been launched with ``exits``. Raises what ``use`` raises, and
        TargetError if a thread does not stop, or the process has ended.
        """
        done: Future[None] = Future()
        self._holding.put((pid, use, done))
        self._await(done)
        if not done.done():
            raise TargetError(f"process {pid} has ended")

    def _await(self, done: Future[None]) -> None:
        """Waits until the follower's thread has finished a request, or has ended."""
        while not done.done() and self._is_running:
            if not done.running():
                self._interrupt()
            with suppress(TimeoutError):
                done.exception(_NUDGE_S)
        if done.done():
            done.result()

    def follow(self, watcher: Watcher) -> None:
        self._watchers.put(watcher)

    def _start(self, program: TracedProgram | CaughtProgram, options: int) -> None:
        program.start()
        self._known.add(program.pid)
        _seize(program.pid, options)

    def _seize_all(self, pid: int) -> None:
        done: set[int] = set()
        self._known.add(pid)
        while new := Process(pid).thread_ids() - done:
            for thread_id in new:
                thread = Process(thread_id)
                if thread.tracer_id() == threading.get_native_id():
                    continue
                try:
                    _seize(thread_id, ptrace.OPTION_EXEC | ptrace.OPTION_FORKS)
                except TargetError:
                    # Threads come and go; a main thread that has ended stays while others go on.
                    if thread.thread_id != thread_id:
                        self._headless.add(pid)
                    elif thread_id == pid or thread.exists():
                        raise
            done |= new

    def _run(self, begin: Callable[[], None]) -> None:
        # A handler makes the signal interrupt waiting; without one, the signal is ignored.
        signal.signal(STOP_SIGNAL, lambda _number, _frame: None)
        self._thread = threading.Thread(target=self._follow, args=(begin,), name="follower")
        self._thread.daemon = True
        self._thread.start()
        self._begun.wait()
        if self._trouble is not None:
            raise self._trouble

    def stop(self) -> None:
        self._ending = True
        self._watchers.put(None)
        while self._is_running:
            self._interrupt()
            assert self._thread is not None
            self._thread.join(_NUDGE_S)

    @property
    def thread_id(self) -> int:
        """Id of the thread that is the tracer of all followed processes."""
        assert self._thread is not None
        return self._thread.native_id or 0

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _interrupt(self) -> None:
        assert self._thread is not None
        assert self._thread.ident is not None
        with suppress(ProcessLookupError):
            signal.pthread_kill(self._thread.ident, STOP_SIGNAL)

    def _hold_waiting(self, watcher: Watcher) -> None:
        while not self._holding.empty():
            pid, use, done = self._holding.get()
            done.set_running_or_notify_cancel()
            threads = StoppedThreads(pid)
            with Urgency():
                try:
                    threads.stop()
                    use(threads.registers())
                except BaseException as error:  # noqa: BLE001 - raised again by who is waiting
                    done.set_exception(error)
                else:
                    done.set_result(None)
                resume_all(threads.stopped)
            self._handle_others(watcher, threads.others)

    def _follow(self, begin: Callable[[], None]) -> None:
        try:
            begin()
            claim()  # not before: a program started by now inherits no priority
        except BaseException as error:  # noqa: BLE001 - raised again by who is waiting
            self._trouble = error
            self._ending = True
        self._begun.set()
        watcher = None if self._ending else self._watchers.get()
        if watcher is not None:
            try:
                self._follow_on(watcher)
            finally:
                relax()

    def _follow_on(self, watcher: Watcher) -> None:
        while not self._ending:
            try:
                thread_id, status = self._next_change(watcher)
            except InterruptedError:
                self._join_waiting()
                self._hold_waiting(watcher)
                continue
            except ChildProcessError:
                return
            try:
                self._handle_change(watcher, thread_id, status)
            except ProcessLookupError:
                # A process may be killed at any time; then ptrace(2) no longer finds it.
                continue
            except BaseException as failure:  # noqa: BLE001 - raised again by who is told
                watcher.failed(failure)
                return

    def _join_waiting(self) -> None:
        while not self._joining.empty():
            pid, done = self._joining.get()
            try:
                self._seize_all(pid)
            except TargetError as error:
                self._known.discard(pid)
                done.set_exception(error)
            else:
                done.set_result(None)

    def _next_change(self, watcher: Watcher) -> tuple[int, int]:
        """Waits for the next event; resumes children whose fork their parents will not report."""
        pause_s = _FIRST_PAUSE_S
        while self._waiting and not self._ending:
            thread_id, status = ptrace.wait(must_wait=False)
            if thread_id:
                return thread_id, status
            for child_id, (parent_id, since_s) in list(self._waiting.items()):
                # An unknown parent has ended, or has made the child its sibling (CLONE_PARENT).
                patience_s = _BIRTH_S if parent_id in self._known else _ORPHAN_S
                is_late = time.monotonic() - since_s > patience_s
                if is_late or Process(child_id).parent_pid() != parent_id:
                    self._adopt(watcher, child_id)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return ptrace.wait()

    def _adopt(self, watcher: Watcher, child_id: int) -> None:
        """Resumes a child whose parent was killed before it could report the fork."""
        parent_id, _ = self._waiting.pop(child_id)
        self._known.add(child_id)
        watcher.forked(parent_id, parent_id, child_id, shares=False)
        resume_all([child_id])

    def _handle_change(self, watcher: Watcher, thread_id: int, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._handle(watcher, thread_id, status)
            return
        self._waiting.pop(thread_id, None)
        if self._exits is not None:
            self._exits.ending.discard(thread_id)
        for child_id in [c for c, (parent, _) in self._waiting.items() if parent == thread_id]:
            self._adopt(watcher, child_id)
        ended = {pid for pid in self._headless if not Process(pid).exists()}
        self._headless -= ended
        for pid in self._known & (ended | {thread_id}):
            self._known.discard(pid)
            watcher.ended(pid, status)

    def _handle(self, watcher: Watcher, thread_id: int, status: int) -> None:
        number, event = os.WSTOPSIG(status), status >> 16
        stops = event == ptrace.Event.STOP
        if event == ptrace.Event.EXEC:
            former_id = ptrace.event_message(thread_id)
            watcher.executed(thread_id, same_thread=former_id == thread_id)
            ptrace.resume(thread_id)
        elif event in (ptrace.Event.FORK, ptrace.Event.VFORK, ptrace.Event.CLONE):
            self._handle_birth(watcher, thread_id, ptrace.event_message(thread_id), event)
            ptrace.resume(thread_id)
        elif event == ptrace.Event.EXIT:
            self._handle_exit(watcher, thread_id)
        elif stops and number in ptrace.GROUP_STOPS:
            self._paused.add(thread_id)
            ptrace.listen(thread_id)
        elif stops:
            self._handle_first_stop(thread_id)
        else:
            if thread_id not in self._paused:  # else its call fails untraced as well
                ptrace.keep_call(thread_id, status)
            self._paused.discard(thread_id)
            self._handle_signal(watcher, thread_id, number)

    def _handle_signal(self, watcher: Watcher, thread_id: int, number: int) -> None:
        """Handles a signal to a thread, which a probe or a breakpoint may have sent."""
        maps = watcher.trapped(thread_id) if number == signal.SIGTRAP else None
        if number == STOP_SIGNAL:
            maps = ptrace.signal_code(thread_id) == ptrace.SI_KERNEL or None
        if maps is None:
            ptrace.resume(thread_id, number)
            return
        pid = self._process_of(thread_id)
        if not maps or watcher.loaded(pid):
            ptrace.resume(thread_id)
        else:
            self._release(watcher, pid, thread_id)

    def _handle_exit(self, watcher: Watcher, thread_id: int) -> None:
        """Handles the stop of a thread at its end, which may be the process's end."""
        assert self._exits is not None
        pid = self._process_of(thread_id)
        held = self._exits.hold(pid, thread_id)
        if held.is_end:
            watcher.exiting(pid, held.threads)
        resume_all(held.ids)
        self._handle_others(watcher, held.others)

    def _handle_others(self, watcher: Watcher, others: Iterable[tuple[int, int]]) -> None:
        for thread_id, status in others:
            with suppress(ProcessLookupError):
                self._handle_change(watcher, thread_id, status)

    def _handle_birth(self, watcher: Watcher, thread_id: int, child_id: int, event: int) -> None:
        is_thread = event == ptrace.Event.CLONE and Process(child_id).group_id() != child_id
        if is_thread or not self._has_children or child_id in self._known:  # known: it was late
            return
        self._known.add(child_id)
        pid = self._process_of(thread_id)
        shares = event == ptrace.Event.VFORK
        status: int | None = None
        if self._waiting.pop(child_id, None) is None:
            _, status = os.waitpid(child_id, ptrace.WALL)  # it stops before it runs
        watcher.forked(pid, thread_id, child_id, shares=shares)
        if status is not None and not os.WIFSTOPPED(status):
            self._handle_change(watcher, child_id, status)
            return
        resume_all([child_id])

    def _release(self, watcher: Watcher, pid: int, thread_id: int) -> None:
        end_fd = os.pidfd_open(pid)
        ptrace.detach(thread_id)
        if Process(pid).parent_pid() == os.getpid():
            os.close(end_fd)  # waitpid(2) reports its end to us
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
            ptrace.resume(thread_id)  # Also threads that a signal had stopped and that run again
        elif not self._has_children:
            ptrace.detach(thread_id)  # A child process that clone(2) has made like a thread
        else:
            self._waiting[thread_id] = Process(thread_id).parent_pid(), time.monotonic()


def _seize(pid: int, options: int) -> None:
    try:
        ptrace.seize(pid, options)
    except OSError as error:
        what = f"process {pid} can't be followed: {error.strerror}"
        raise TargetError(what, hint="is a debugger or strace attached to it?") from error
