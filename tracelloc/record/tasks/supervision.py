"""Supervised tasks: each failure is isolated, counted, and reported once.

A trace does more than apply events: it searches memory, counts objects, judges, takes samples.
A failure in these tasks must neither end the trace nor stay hidden.
"""

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from tracelloc.errors import PrivilegeError, TargetError, TracellocError, scarcity
from tracelloc.record.process.procfs import Process
from tracelloc.text import printable

Say = Callable[[str], None]

_T = TypeVar("_T")
# Errors that a process causes which has ended: nobody but root may inspect what is left of it.
_OF_ENDED: Final = TargetError, PrivilegeError
_MOST_FAILURES: Final = 3  # Failures in a row after which a task is given up
# Delay before a failed task is tried again; ten times as long after each further failure.
_FIRST_DELAY_S: Final = 1.0
# Processes whose failures are reported individually, per task; all are counted.
_MOST_LINES: Final = 4
_LONGEST_WHY: Final = 500  # Longest reason, in characters


def say_nothing(_message: str) -> None:
    """Default callback: discards the message."""


def reason_of(error: BaseException) -> str:
    """Returns an error in one line, with its type unless the message is meant for users."""
    kind, text = type(error).__name__, printable(str(error))[:_LONGEST_WHY]
    if isinstance(error, OSError) and error.strerror:
        return scarcity(error) or error.strerror
    if isinstance(error, OSError | TracellocError) and text:
        return text
    return f"{kind}: {text}" if text else kind


class Supervisor:
    """Runs the tasks of one trace. Thread safe."""

    def __init__(
        self,
        say: Say = say_nothing,
        *,
        debug: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``say`` gets a line per failing task and process; ``debug``: prints tracebacks, too."""
        self.say, self._debug, self._clock_s = say, debug, clock_s
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        # Consecutive failures of a task in a process, and when it may be tried again
        self._in_row: dict[tuple[str, int], tuple[int, float]] = {}
        self._reported: set[tuple[str, int]] = set()
        self._lines: Counter[str] = Counter()

    @property
    def failures(self) -> dict[str, int]:
        """Returns the number of failures of each task that has failed, in all processes."""
        with self._lock:
            return dict(self._counts)

    def run(
        self, task: str, pid: int, work: Callable[[], _T], *, gives_up: bool = True
    ) -> _T | None:
        """Runs a task. Returns its result; None if it failed or is not due.

        ``pid``: the process that the task is for; 0: all. ``gives_up``: a failed task is tried
        again later, and is given up after some failures in a row. A task does not count as
        failed if its process ends meanwhile.
        """
        failed = self._in_row.get((task, pid))
        if failed is not None and gives_up:
            count, again_s = failed
            if count >= _MOST_FAILURES or self._clock_s() < again_s:
                return None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - counted and reported
            if not (pid and isinstance(error, _OF_ENDED) and _is_ending(Process(pid))):
                self.note_failure(task, pid, error)
            return None
        if failed is not None:
            with self._lock:
                self._in_row.pop((task, pid), None)
        return result

    def note_failure(
        self, task: str, pid: int, error: BaseException, *, is_final: bool = False
    ) -> None:
        """Counts a failure; reports a process's first one. ``is_final``: retrying is useless."""
        key = task, pid
        with self._lock:
            self._counts[task] += 1
            count = self._in_row.get(key, (0, 0.0))[0] + 1
            again_s = self._clock_s() + _FIRST_DELAY_S * 10 ** min(count - 1, 9)
            self._in_row[key] = _MOST_FAILURES if is_final else count, again_s
            self._lines[task] += (is_new := key not in self._reported)
            self._reported.add(key)
            lines = self._lines[task]
        if self._debug:
            traceback.print_exception(error)
        if is_new and lines <= _MOST_LINES:
            whose = f" of process {pid}" if pid else ""
            only = "; more are counted, not reported" if lines == _MOST_LINES else ""
            self.say(
                f"warning: {task}{whose} failed: {reason_of(error)}; tracing goes on without{only}"
            )

    def count(self, task: str) -> None:
        """Counts a failure of a task that the caller reports itself."""
        with self._lock:
            self._counts[task] += 1

    def has_given_up(self, task: str, pid: int) -> bool:
        return self._in_row.get((task, pid), (0, 0.0))[0] >= _MOST_FAILURES

    def forget(self, pid: int) -> None:
        """Lets tasks of a process be tried again, as it has ended or executed; counts stay."""
        with self._lock:
            for key in [key for key in self._in_row if key[1] == pid]:
                del self._in_row[key]
            self._reported = {key for key in self._reported if key[1] != pid}


def _is_ending(process: Process) -> bool:
    """Whether a process has lost its memory; procfs may not show it as ended yet."""
    return not process.is_running(process.thread_id)


class BoundedWork:
    """Runs work on a thread, one at a time, and bounds the wait: nothing can end what reads memory
    that waits for what another program does (userfaultfd(2), FUSE).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = threading.Lock()
        self._overdue: Future[None] | None = None

    @property
    def is_overdue(self) -> bool:
        """Whether earlier work has exceeded its time limit and still goes on."""
        return self._overdue is not None and not self._overdue.done()

    def run(self, work: Callable[[], _T], patience_s: float) -> _T:
        """Returns the result of ``work``, or raises its error; TimeoutError, at once if overdue."""
        if self.is_overdue or not self._busy.acquire(timeout=patience_s):
            raise TimeoutError("an earlier step is still running")
        results: list[_T] = []
        done: Future[None] = Future()

        def body() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - raised to who waits
                done.set_exception(error)
            else:
                done.set_result(None)
            finally:
                self._busy.release()

        threading.Thread(target=body, name=self._name, daemon=True).start()
        wait([done], patience_s)
        if not done.done():
            self._overdue = done
            raise TimeoutError(f"it takes more than {patience_s:g} s")
        done.result()
        return results[0]
