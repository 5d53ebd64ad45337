"""The ptrace(2) requests for following children. Every call is for one thread of the target.

All requests must come from the thread that seized the target. Only ``interrupt`` stops a running
thread. When the calling thread ends, for whatever reason, the kernel resumes all threads that it
had seized as if nothing had happened.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import partial
from typing import Final

from tracelloc.architecture import native
from tracelloc.architecture.description import GeneralRegisters
from tracelloc.record.process import urgency
from tracelloc.system.syscalls import checked

_CONT: Final = 7
_SINGLESTEP: Final = 9
_SYSCALL: Final = 24
_DETACH: Final = 17
_GETEVENTMSG: Final = 0x4201
_GETSIGINFO: Final = 0x4202
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_LISTEN: Final = 0x4208
_GETREGSET: Final = 0x4204
_SETREGSET: Final = 0x4205
_GETSIGMASK: Final = 0x420A
_SETSIGMASK: Final = 0x420B
_GET_RSEQ_CONFIGURATION: Final = 0x420F
_RSEQ_CONFIGURATION_BYTES: Final = 24
_NT_PRSTATUS: Final = 1
_MOST_STATE_BYTES: Final = 1 << 14
_SIGNAL_SET_BYTES: Final = 8

# PTRACE_O_TRACEFORK, TRACEVFORK, TRACECLONE: new children and threads are seized as well.
OPTION_FORKS: Final = 2 | 4 | 8
# PTRACE_O_TRACESYSGOOD: the kernel does not take stops at system calls for signals.
OPTION_CALLS: Final = 1
AT_CALL: Final = signal.SIGTRAP | 0x80  # Why a thread has stopped, by its status: at a call
OPTION_EXEC: Final = 0x10  # PTRACE_O_TRACEEXEC
# PTRACE_O_TRACECLONE, TRACEEXIT: all threads are seized, and stop at their ends.
OPTION_EXITS: Final = 8 | 0x40

# The stops that concern a whole process (signal(7)).
GROUP_STOPS: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# The `si_code` of signals sent by the kernel itself (asm-generic/siginfo.h).
SI_KERNEL: Final = 0x80

WALL: Final = 0x40000000  # Waits for threads as well (waitpid(2))
_WNOTHREAD: Final = 0x20000000
_SIGINFO_BYTES: Final = 128
_SI_CODE: Final = 8  # Offset of the code in `siginfo_t`, in bytes


class Event(IntEnum):
    """Why a thread has stopped, other than for a signal."""

    FORK = 1
    VFORK = 2
    CLONE = 3
    EXEC = 4
    EXIT = 6
    STOP = 128


_WORD: Final = (1 << 64) - 1
# ERESTARTNOHAND of the kernel's linux/errno.h: the call is made again unless a handler runs.
_RESTART: Final = 514
NO_CALL: Final = -1  # In place of a system call's number: the thread is in none


class Registers:
    """A stopped thread's general registers, by ``GeneralRegisters``: unsigned, 64 bits."""

    __slots__ = ("_of_their_own", "_words", "layout")

    def __init__(
        self,
        layout: GeneralRegisters,
        words: Iterable[int],
        *,
        entered_call: int = NO_CALL,
        thread_pointer: int = 0,
    ) -> None:
        """``words``: all values, in the layout's order.

        ``entered_call`` and ``thread_pointer`` are used if the layout has no registers for them.
        """
        self.layout = layout
        self._words = dict(zip(layout.names, words, strict=True))
        self._of_their_own = entered_call, thread_pointer

    @classmethod
    def unpack(
        cls,
        layout: GeneralRegisters,
        general: bytes,
        *,
        entered_call: bytes = b"",
        thread_pointer: bytes = b"",
    ) -> Registers:
        """Decodes registers from the kernel's register sets.

        The registers of a 32-bit program count as 0, and it counts as in no system call.
        """
        count = len(layout.names)
        if len(general) != 8 * count:
            general = bytes(8 * count)
            if layout.entered_call is not None:
                at = 8 * layout.names.index(layout.entered_call)
                general = general[:at] + b"\xff" * 8 + general[at + 8 :]
            entered_call = thread_pointer = b""
        call = int.from_bytes(entered_call, "little", signed=True) if entered_call else NO_CALL
        return cls(
            layout,
            struct.unpack(f"<{count}Q", general),
            entered_call=call,
            # The second word is an older system's.
            thread_pointer=int.from_bytes(thread_pointer[:8], "little"),
        )

    def copy(self) -> Registers:
        call, pointer = self._of_their_own
        words = self._words.values()
        return Registers(self.layout, words, entered_call=call, thread_pointer=pointer)

    def __getitem__(self, name: str) -> int:
        return self._words[name]

    def __setitem__(self, name: str, value: int) -> None:
        if name not in self._words:
            raise KeyError(name)
        self._words[name] = value & _WORD

    @property
    def words(self) -> list[int]:
        return list(self._words.values())

    @property
    def program_counter(self) -> int:
        return self[self.layout.program_counter]

    @program_counter.setter
    def program_counter(self, value: int) -> None:
        self[self.layout.program_counter] = value

    @property
    def stack_pointer(self) -> int:
        return self[self.layout.stack_pointer]

    @stack_pointer.setter
    def stack_pointer(self, value: int) -> None:
        self[self.layout.stack_pointer] = value

    @property
    def thread_pointer(self) -> int:
        """The address of the thread's own variables (thread pointer)."""
        name = self.layout.thread_pointer
        return self._of_their_own[1] if name is None else self[name]

    @property
    def entered_call(self) -> int:
        """The number of the thread's current system call; ``NO_CALL`` if it is in none."""
        name = self.layout.entered_call
        return self._of_their_own[0] if name is None else ctypes.c_int64(self[name]).value

    @property
    def call_result(self) -> int:
        """The result of the system call that has just ended."""
        return ctypes.c_int64(self[self.layout.call_result]).value

    def pack(self) -> bytes:
        """Encodes the registers as the kernel's general register set."""
        return struct.pack(f"<{len(self._words)}Q", *self._words.values())


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def _request(request: int, thread_id: int, data: int = 0, address: int | None = None) -> None:
    checked(_libc.ptrace(request, thread_id, address, data))


# Requests without an answer: take the thread's id, and what is named last, if anything. They raise
# OSError.
seize: Final = partial(_request, _SEIZE)  # Traces a thread, without stopping it; options
interrupt: Final = partial(_request, _INTERRUPT)  # A running thread stops soon, with `Event.STOP`
resume: Final = partial(_request, _CONT)  # Resumes a stopped thread; may deliver a signal
# Resumes a stopped thread up to the beginning or the end of a system call.
resume_to_call: Final = partial(_request, _SYSCALL)
detach: Final = partial(_request, _DETACH)  # Resumes a thread and traces it no more; a signal
# Leaves a thread stopped by a signal, until another signal resumes it.
listen: Final = partial(_request, _LISTEN)


def step(thread_id: int) -> int:
    """Makes a stopped thread execute one instruction. Returns the status of waitpid(2)."""
    _request(_SINGLESTEP, thread_id)
    return os.waitpid(thread_id, WALL)[1]


def registers(thread_id: int) -> Registers:
    """Returns the registers of a stopped thread. Raises OSError."""
    layout = native().general
    calls, pointers = layout.entered_call_set, layout.thread_pointer_set
    return Registers.unpack(
        layout,
        register_set(thread_id, _NT_PRSTATUS),
        entered_call=register_set(thread_id, calls) if calls else b"",
        thread_pointer=register_set(thread_id, pointers) if pointers else b"",
    )


def set_registers(thread_id: int, values: Registers) -> None:
    """Sets the general registers of a stopped thread. Raises OSError."""
    set_register_set(thread_id, _NT_PRSTATUS, values.pack())
    calls = values.layout.entered_call_set
    if calls:
        set_register_set(thread_id, calls, values.entered_call.to_bytes(4, "little", signed=True))


def set_register_set(thread_id: int, number: int, content: bytes) -> None:
    """Sets one of a stopped thread's register sets (NT_…, elf.h). Raises OSError."""
    area = ctypes.create_string_buffer(content, len(content))
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(area), len(content))
    _request(_SETREGSET, thread_id, ctypes.addressof(vector), number)


def keep_call(thread_id: int, status: int) -> None:
    """Keeps a stop that a program would not notice untraced from making a system call fail.

    ``status``: that of waitpid(2), of a stopped thread. Some calls return EINTR if a tracer stops
    their thread, or if it gets a signal that the program ignores (signal(7)). The kernel makes such
    a call again; if a handler runs, the call returns EINTR all the same. Does nothing on 64-bit
    Arm, where the kernel decides about that before the stop. Raises OSError.
    """
    values = registers(thread_id)
    # A descriptor is closed even if close(2) returns EINTR.
    is_over = values.entered_call in (NO_CALL, native().system_call("close"))
    if is_over or os.WSTOPSIG(status) in GROUP_STOPS:
        return
    if values.call_result == -errno.EINTR:
        values[values.layout.call_result] = -_RESTART
        set_registers(thread_id, values)


def register_set(thread_id: int, number: int) -> bytes:
    """Returns one of a stopped thread's register sets (NT_…, elf.h). Raises OSError."""
    area = ctypes.create_string_buffer(_MOST_STATE_BYTES)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(area), len(area))
    _request(_GETREGSET, thread_id, ctypes.addressof(vector), number)
    return area.raw[: vector[1]]


def signal_mask(thread_id: int) -> int:
    """Returns the signals that a stopped thread blocks, one bit each. Raises OSError."""
    mask = ctypes.c_uint64()
    _request(_GETSIGMASK, thread_id, ctypes.addressof(mask), _SIGNAL_SET_BYTES)
    return mask.value


def set_signal_mask(thread_id: int, mask: int) -> None:
    """Sets the signals that a stopped thread blocks. Raises OSError."""
    value = ctypes.c_uint64(mask)
    _request(_SETSIGMASK, thread_id, ctypes.addressof(value), _SIGNAL_SET_BYTES)


def restartable_area(thread_id: int) -> int:
    """Returns the address of a stopped thread's ``struct rseq`` (linux/rseq.h); 0: none known."""
    area = ctypes.create_string_buffer(_RSEQ_CONFIGURATION_BYTES)
    try:
        _request(_GET_RSEQ_CONFIGURATION, thread_id, ctypes.addressof(area), len(area))
    except OSError:
        return 0
    return int.from_bytes(area.raw[:8], "little")


def event_message(thread_id: int) -> int:
    """Returns an event's argument: a new thread's id, the executing one's, or an exit status."""
    message = ctypes.c_ulong()
    _request(_GETEVENTMSG, thread_id, ctypes.addressof(message))
    return message.value


def signal_code(thread_id: int) -> int:
    """Returns the ``si_code`` of the signal that has stopped a thread. Raises OSError."""
    info = (ctypes.c_char * _SIGINFO_BYTES)()
    _request(_GETSIGINFO, thread_id, ctypes.addressof(info))
    return ctypes.c_int32.from_buffer(info, _SI_CODE).value


def wait(*, must_wait: bool = True) -> tuple[int, int]:
    """Waits for a change of a thread that the caller has seized, or of a child process.

    Returns (thread id, status of waitpid(2)); thread 0 if ``must_wait`` is False and nothing came.
    Raises ChildProcessError if none are left, InterruptedError if a signal handler ran.
    """
    return urgency.wait(WALL | _WNOTHREAD | (0 if must_wait else os.WNOHANG))
