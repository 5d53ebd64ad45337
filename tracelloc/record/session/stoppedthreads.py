"""Threads of a followed process, stopped by ptrace(2): at their ends, or for a search of memory.

A process ends by exit_group(2), by a signal, or with its last thread. The memory stays as long as
one thread is stopped. The kernel ends the other threads meanwhile, which stop as well: so their
registers and stacks are known.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass, field
from tracelloc.errors import TargetError
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process

_OTHERS_S: Final = 1.0  # How long the other threads of a process may take to end
# How long the thread may take that ends the process. There is none if the process executes.
_CALLER_S: Final = 0.2
_LOOK_AGAIN_S: Final = 0.0002
_SIGNAL_BITS: Final = 0x7F
_EXITING: Final = ptrace.Event.EXIT << 8 | signal.SIGTRAP  # A thread's status (ptrace(2))


@dataclass(slots=True)
class HeldThreads:
    """Threads of one process that are stopped at their ends."""

    ids: list[int] = field(default_factory=list)  # Ids of the stopped threads
    # Registers of the threads that were running when the process ended.
    threads: list[ThreadRegisters] = field(default_factory=list)
    # Other stops meanwhile (thread id, status of waitpid(2)), still to be handled.
    others: list[tuple[int, int]] = field(default_factory=list)
    is_end: bool = False  # Whether the whole process ends, and not by SIGKILL


class ExitStops:
    """Tells which stops of threads at their ends are a process's end; for the follower."""

    def __init__(self) -> None:
        # Ids of threads that are ending by themselves
        self.ending: set[int] = set()
        self._exit = native().system_call("exit")  # A thread ends by itself (exit(2))
        self._exit_group = native().system_call("exit_group")

    def hold(self, pid: int, thread_id: int) -> HeldThreads:
        """Keeps an ending thread stopped, and if the whole process ends, all its threads."""
        held = HeldThreads()
        call = self._add(held, thread_id)
        process = Process(pid)
        is_last = not self._running(process, held)
        if call == self._exit and not is_last:
            held.threads.pop()
            self.ending.add(thread_id)
            return held
        number = ptrace.event_message(thread_id) & _SIGNAL_BITS
        # After SIGKILL, no thread stays stopped (ptrace(2)).
        if number == signal.SIGKILL:
            return held
        held.is_end = is_last or call == self._exit_group or number != 0
        end_s = time.monotonic() + (_OTHERS_S if held.is_end else _CALLER_S)
        while time.monotonic() < end_s and self._running(process, held):
            other, status = ptrace.wait(must_wait=False)
            if not other:
                time.sleep(_LOOK_AGAIN_S)
            elif status >> 8 == _EXITING and other in process.thread_ids():
                held.is_end |= self._add(held, other) == self._exit_group
            else:
                held.others.append((other, status))
        return held

    def _add(self, held: HeldThreads, thread_id: int) -> int:
        """Adds a stopped thread. Returns the number of the system call that it is in."""
        held.ids.append(thread_id)
        registers = ptrace.registers(thread_id)
        held.threads.append(registers_of(thread_id, registers))
        return registers.entered_call

    def _running(self, process: Process, held: HeldThreads) -> bool:
        return any(map(process.is_running, process.thread_ids() - {*held.ids, *self.ending}))


def registers_of(thread_id: int, registers: ptrace.Registers) -> ThreadRegisters:
    """Returns the registers of a stopped thread in the form that pointer searches need."""
    pointers = registers.thread_pointer, registers.stack_pointer
    return ThreadRegisters(thread_id, *pointers, 0, np.array(registers.words, np.uint64))


# How long threads may take to stop; those that wait for a vfork(2) child stop after it.
_STOP_S: Final = 5.0


class StoppedThreads:
    """Stops all threads of a followed process; for the follower's thread."""

    def __init__(self, pid: int) -> None:
        self._process = Process(pid)
        self._interrupted: set[int] = set()  # Threads that will stop
        self.stopped: list[int] = []  # Threads that `stop` has stopped
        # Other changes in the meantime: thread and status, still to be handled
        self.others: list[tuple[int, int]] = []

    def stop(self) -> None:
        """Stops all threads. Raises TargetError if one does not stop."""
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
        known = {*self._interrupted, *self.stopped, *(thread_id for thread_id, _ in self.others)}
        new = set(filter(self._process.is_running, self._process.thread_ids() - known))
        for thread_id in new:
            with suppress(ProcessLookupError):
                ptrace.interrupt(thread_id)
                self._interrupted.add(thread_id)
        return bool(new)

    def _note(self, thread_id: int, status: int) -> None:
        self._interrupted.discard(thread_id)
        is_event = os.WIFSTOPPED(status) and status >> 16 == ptrace.Event.STOP
        if is_event and os.WSTOPSIG(status) == signal.SIGTRAP:
            self.stopped.append(thread_id)
            with suppress(ProcessLookupError):
                ptrace.keep_call(thread_id, status)
        else:
            self.others.append((thread_id, status))

    def registers(self) -> list[ThreadRegisters]:
        others = [thread_id for thread_id, status in self.others if os.WIFSTOPPED(status)]
        found = []
        for thread_id in (*self.stopped, *others):
            with suppress(ProcessLookupError):
                found.append(registers_of(thread_id, ptrace.registers(thread_id)))
        return found


def resume_all(thread_ids: Iterable[int]) -> None:
    """Resumes stopped threads, as far as they still exist."""
    for thread_id in thread_ids:
        with suppress(ProcessLookupError):
            ptrace.resume(thread_id)
