"""Stops all threads of a process that nobody traces yet, and resumes them."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.urgency import Urgency

# How long threads may take to stop; those that wait for a vfork(2) child stop after it.
_STOP_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.0002


class StoppedProcess:
    """A context in which all threads of a process are stopped.

    If the calling thread dies, the kernel resumes all threads (ptrace(2)).
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seized: set[int] = set()
        self._stopped: set[int] = set()
        self._undo = ExitStack()

    def __enter__(self) -> StoppedProcess:
        """Stops all threads. Raises TargetError, with all threads running again."""
        with ExitStack() as undo:
            undo.enter_context(Urgency())
            undo.callback(self._resume)
            self._stop()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._undo.close()

    @property
    def thread_ids(self) -> list[int]:
        """Ids of the stopped threads: all threads of the process."""
        return list(self._stopped)

    def _stop(self) -> None:
        end_s = time.monotonic() + _STOP_S
        while self._seize_new() or len(self._stopped) < len(self._seized):
            if time.monotonic() > end_s:
                raise TargetError(f"the threads of process {self._process.pid} don't stop")
            for thread_id in self._seized - self._stopped:
                changed, status = os.waitpid(thread_id, ptrace.WALL | os.WNOHANG)
                if changed:
                    self._note(thread_id, status)
            time.sleep(_LOOK_AGAIN_S)
        if not self._stopped:
            raise TargetError(f"process {self._process.pid} has ended")

    def _seize_new(self) -> bool:
        """Begins to stop threads that are not known yet. Returns whether there are any."""
        new = {
            each
            for each in self._process.thread_ids() - self._seized
            if self._process.is_running(each)
        }
        for thread_id in new:
            try:
                ptrace.seize(thread_id, ptrace.OPTION_CALLS)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                raise TargetError(
                    f"process {self._process.pid} can't be stopped",
                    hint="another debugger has it, or it gives nobody the right to (ptrace(2))",
                ) from error
            self._seized.add(thread_id)
            with suppress(ProcessLookupError):
                ptrace.interrupt(thread_id)
        return bool(new)

    def _note(self, thread_id: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self._seized.discard(thread_id)
            return
        with suppress(ProcessLookupError):
            ptrace.keep_call(thread_id, status)
            if status >> 16 == ptrace.Event.STOP:
                self._stopped.add(thread_id)
            else:
                # It was to get a signal. It gets it now, and stops before it runs the handler.
                ptrace.resume(thread_id, os.WSTOPSIG(status))

    def _resume(self) -> None:
        for thread_id in self._seized:
            with suppress(OSError):
                number = 0 if thread_id in self._stopped else _await_stop(thread_id)
                ptrace.detach(thread_id, number)
        self._seized.clear()
        self._stopped.clear()


def _await_stop(thread_id: int) -> int:
    """Waits until an interrupted thread has stopped: only then can tracelloc detach from it.

    Returns the signal for which the thread has stopped; 0: none.
    """
    end_s = time.monotonic() + _STOP_S
    while time.monotonic() < end_s:
        changed, status = os.waitpid(thread_id, ptrace.WALL | os.WNOHANG)
        if changed:
            ptrace.keep_call(thread_id, status)
            is_signal = os.WIFSTOPPED(status) and status >> 16 != ptrace.Event.STOP
            return os.WSTOPSIG(status) if is_signal else 0
        time.sleep(_LOOK_AGAIN_S)
    return 0
