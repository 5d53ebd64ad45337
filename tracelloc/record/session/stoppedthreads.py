"""Stops all threads of a followed process for a moment, for a search of its memory."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.exitstops import registers_of

# How long threads may take to stop; those that wait for a vfork(2) child stop after it.
_STOP_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.0002


class StoppedThreads:
    """The threads of a process whose threads are all followed; for the follower's thread."""

    def __init__(self, pid: int) -> None:
        self._process = Process(pid)
        self._interrupted: set[int] = set()  # Threads that will stop
        self._stopped: list[int] = []
        # Other changes in the meantime: thread and status, still to be handled
        self.others: list[tuple[int, int]] = []

    def stop(self) -> None:
        """Stops them. Raises TargetError."""
        end_s = time.monotonic() + _STOP_S
        while self._interrupt_new() or self._interrupted:
            if time.monotonic() > end_s:
                raise TargetError(f"the threads of process {self._process.pid} don't stop")
            thread_id, status = ptrace.wait(must_wait=False)
            if thread_id:
                self._note(thread_id, status)
            else:
                time.sleep(_LOOK_AGAIN_S)

    def _interrupt_new(self) -> bool:
        known = {*self._interrupted, *self._stopped, *(thread_id for thread_id, _ in self.others)}
        new = {
            each for each in self._process.thread_ids() - known if self._process.is_running(each)
        }
        for thread_id in new:
            with suppress(ProcessLookupError):
                ptrace.interrupt(thread_id)
                self._interrupted.add(thread_id)
        return bool(new)

    def _note(self, thread_id: int, status: int) -> None:
        self._interrupted.discard(thread_id)
        is_event = os.WIFSTOPPED(status) and status >> 16 == ptrace.Event.STOP
        if is_event and os.WSTOPSIG(status) == signal.SIGTRAP:
            self._stopped.append(thread_id)
        else:
            self.others.append((thread_id, status))

    def registers(self) -> list[ThreadRegisters]:
        """The registers of all of them."""
        others = [thread_id for thread_id, status in self.others if os.WIFSTOPPED(status)]
        found = []
        for thread_id in (*self._stopped, *others):
            with suppress(ProcessLookupError):
                found.append(registers_of(thread_id, ptrace.registers(thread_id)))
        return found

    def resume(self) -> None:
        """Resumes those that have stopped for this; ``others`` are the caller's."""
        for thread_id in self._stopped:
            with suppress(ProcessLookupError):
                ptrace.resume(thread_id)
