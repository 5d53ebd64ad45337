"""System calls made by a stopped thread of the target (ptrace(2), rt_sigreturn(2)).

The thread runs a system call of the C library's with a return behind it. A signal frame
(``x86_64.py``, ``aarch64.py``) has its registers, and the call returns to the code that restores
registers from there: if tracelloc is killed at any time, the thread makes the system call and then
goes on where it was. (A sleep then starts again.) A thread is never stopped by a signal, which it
would get if tracelloc were killed.

The frame is not on the thread's own stack: a coroutine's may end anywhere, with the program's data
below it. It is below the main thread's mapped stack, in memory that nothing has ever used. The
kernel extends the stack for whoever writes there, a debugger included (Linux, ``expand_stack``).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import Final

from tracelloc.architecture import native
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import read_regions
from tracelloc.record.process.urgency import Urgency
from tracelloc.record.sources.injected import aarch64, x86_64

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

    def __exit__(self, *_: object) -> None:
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
        new = set(filter(self._process.is_running, self._process.thread_ids() - self._seized))
        for thread_id in new:
            try:
                ptrace.seize(thread_id, ptrace.OPTION_CALLS)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                raise TargetError(
                    f"process {self._process.pid} can't be stopped",
                    hint="a debugger is attached, or it allows nobody to trace it (ptrace(2))",
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


_NO_ROOM: Final = "its main thread's stack can't grow by 80 KiB"
_ALL_SIGNALS: Final = (1 << 64) - 1
# How far below the main thread's stack the frame ends. If tracelloc is killed, that thread may use
# more stack before the frame is read.
_DISTANCE_BYTES: Final = 1 << 16
_MOST_FRAME_BYTES: Final = 1 << 14
_NAME_BYTES: Final = 64
_MACHINES: Final = {X86_64: x86_64, AARCH64: aarch64}


def machine() -> ModuleType:
    """Returns the module for this machine's registers."""
    return _MACHINES[native()]


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Addresses of code in the target's C library with which a thread makes system calls."""

    call: int  # Address of a system call, with a return behind it
    restore: int  # Address of rt_sigreturn(2), as the C library or the kernel writes it


class RemoteThread:
    """A stopped thread of the target, which makes system calls. Call from its tracer's thread."""

    def __init__(self, process: Process, thread_id: int, place: CallPlace, memory_fd: int) -> None:
        """``memory_fd``: of the process, writable. Raises TargetError if it can't make calls."""
        self._process, self._thread_id = process, thread_id
        self._is_to_stop = False  # Whether the program got a SIGSTOP, which nothing blocks
        self._place, self._memory_fd = place, memory_fd
        self._end = self._lowest = _find_room(process)
        self._after = machine().begin(process, thread_id)

    def write_name(self, name: str) -> int:
        """Writes a string for a system call's argument. Returns its address. Raises TargetError."""
        self._write(self._end, name.encode().ljust(_NAME_BYTES, b"\0"))
        return self._end

    def clear(self) -> None:
        """Overwrites all that was written by zeros, as the kernel had supplied the memory.

        If the program got a SIGSTOP, and no SIGCONT after it, it gets that now.
        """
        with suppress(OSError):
            os.pwrite(self._memory_fd, bytes(self._end + _NAME_BYTES - self._lowest), self._lowest)
            if self._after:
                values = ptrace.registers(self._thread_id)
                for name, value in self._after.items():
                    values[name] = value
                ptrace.set_registers(self._thread_id, values)
        if self._is_to_stop and not self._process.has_pending(signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGSTOP)

    def call(self, name: str, *arguments: int) -> int:
        """Makes a system call. Returns its result. Raises OSError, TargetError."""
        kept = ptrace.registers(self._thread_id)
        mask = ptrace.signal_mask(self._thread_id)
        vectors = machine().vectors_lost_by_calls(self._thread_id)
        # At each of these steps the thread could go on by itself: its registers are either its own
        # or lead to them, and it blocks all signals only while they lead to them.
        self._enter(kept, mask, self._place.call, (native().system_call(name), *arguments))
        try:
            ptrace.set_signal_mask(self._thread_id, _ALL_SIGNALS)
            for _ in range(2):  # it begins, it ends
                self._await_call()
            result = ptrace.registers(self._thread_id).call_result
            # A call that the stop had interrupted is made again by the kernel behind another stop.
            ptrace.interrupt(self._thread_id)
        finally:
            ptrace.set_signal_mask(self._thread_id, mask)
            ptrace.set_registers(self._thread_id, kept)
            for number, content in vectors.items():
                ptrace.set_register_set(self._thread_id, number, content)
        ptrace.resume(self._thread_id)
        if self._await() >> 16 != ptrace.Event.STOP:
            raise TargetError("a thread of the target did not stop")
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    def run(self, function: int, work: Callable[[], None]) -> None:
        """Calls a function without arguments, and ``work`` when that begins to sleep.

        It returns to ``CallPlace.restore``. Raises OSError, TargetError, and what ``work`` raises.
        """
        mask = ptrace.signal_mask(self._thread_id)
        self._enter(ptrace.registers(self._thread_id), mask, function, ())
        ptrace.set_signal_mask(self._thread_id, _ALL_SIGNALS)
        call, awaited = ptrace.NO_CALL, native().system_call("nanosleep")
        while call != native().system_call("rt_sigreturn"):
            self._await_call()
            call = ptrace.registers(self._thread_id).entered_call
            if call == awaited:
                awaited = ptrace.NO_CALL
                work()
        self._await_call()  # until it has its registers again

    def _await_call(self) -> None:
        """Resumes the thread until a system call begins or ends."""
        ptrace.resume_to_call(self._thread_id)
        while (status := self._await()) >> 8 != ptrace.AT_CALL:
            if status >> 8 != signal.SIGSTOP:
                raise TargetError(f"a thread has stopped for another reason: {status:#x}")
            self._is_to_stop = True
            ptrace.resume_to_call(self._thread_id)

    def _await(self) -> int:
        status = os.waitpid(self._thread_id, ptrace.WALL)[1]
        if not os.WIFSTOPPED(status):
            raise TargetError("the target has ended")
        return status

    def _enter(self, kept: ptrace.Registers, mask: int, place: int, words: tuple[int, ...]) -> None:
        values, image = machine().entry(self._thread_id, kept, mask, self._end, self._place.restore)
        self._lowest = values.stack_pointer
        self._write(self._lowest, image)
        layout = values.layout
        for name, value in zip((layout.call_number, *layout.call_arguments), words, strict=False):
            values[name] = value
        values.program_counter = place
        ptrace.set_registers(self._thread_id, values)

    def _write(self, at: int, content: bytes) -> None:
        try:
            os.pwrite(self._memory_fd, content, at)
        except OSError as error:
            raise TargetError(_NO_ROOM) from error


def _find_room(process: Process) -> int:
    """Returns the end of memory that the stack of the main thread may grow into."""
    regions = read_regions(process.maps_text())
    stack = next((each.start for each in regions if each.path == "[stack]"), 0)
    lowest = stack - _DISTANCE_BYTES - _MOST_FRAME_BYTES
    if not stack or any(each.start < stack and each.end > lowest for each in regions):
        raise TargetError(_NO_ROOM)
    return stack - _DISTANCE_BYTES
