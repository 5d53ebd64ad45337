"""Stops the next process that executes a program of a given name, before its first instruction.

A BPF program at the raw tracepoint sched_process_exec compares the name and sends SIGSTOP, to one
process only. It is so small that it is written as instructions here, without a compiler
(Documentation/bpf/standardization/instruction-set.rst).
"""

import os
import struct
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel import catchguard
from tracelloc.record.kernel.bpfmaps import keys_of
from tracelloc.record.kernel.compiler import CompiledProbes, MapSpec
from tracelloc.record.kernel.programs import RAW_TRACEPOINT, Programs
from tracelloc.record.process.identity import pid_namespace
from tracelloc.system import syscalls

NAME_LETTERS: Final = 15  # Bytes of a name that the kernel keeps (TASK_COMM_LEN)
_HASH: Final = 1  # BPF_MAP_TYPE_HASH
_LOOKS_EVERY_S: Final = 0.01
_SIGSTOP: Final = 19
_GET_COMM, _GET_IDS, _SEND_SIGNAL, _UPDATE = 16, 14, 109, 2
_NOEXIST: Final = 1
_EXIT_AT: Final = 27  # The position of the last but one instruction


class ExecCatcher:
    """Watches for the exec of a program with a given name, until ``close``.

    The caught process stays stopped until somebody sends SIGCONT: a guard does if tracelloc is
    killed before ``release``.
    """

    def __init__(self, name: str) -> None:
        """``name``: at most 15 bytes count. Raises TracellocError."""
        if pid_namespace() is not None:
            # It would stop processes of other containers, which can't be seen from here.
            hint = "run tracelloc in the PID namespace of the host, or trace the container there "
            raise UnsupportedError(
                "programs can't be waited for in a container", hint=f"{hint}(--group ID --wait)"
            )
        caught = MapSpec("caught", _HASH, 8, 8, 1, 0)
        self._programs = Programs(CompiledProbes((caught,), {"catch_exec": _code(name)}))
        self._attached = -1
        try:
            self._programs.load("catch_exec", RAW_TRACEPOINT)
            places = self._programs.map_fd("caught"), syscalls.bpf_number()
            self._guard = subprocess.Popen(
                [sys.executable, "-IS", catchguard.__file__, *map(str, places)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=places[:1], start_new_session=True,
            )  # fmt: skip
            self._attached = self._programs.attach_tracepoint("catch_exec", "sched_process_exec")
        except BaseException:
            self._programs.close()
            raise

    def wait(self) -> None:
        while self.caught() is None:
            time.sleep(_LOOKS_EVERY_S)

    def caught(self) -> int | None:
        """Returns the stopped process's PID in the initial namespace; None if there is none."""
        return next(keys_of(self._programs.map_fd("caught")), None)

    def close(self) -> None:
        """Detaches the BPF program: no more processes are stopped."""
        os.close(self._attached)
        self._programs.close()

    def release(self) -> None:
        """Lets the caught process run, and ends the guard. May be called twice."""
        if self._guard.returncode is None:
            with suppress(OSError):
                self._guard.communicate(b"!")


def _code(name: str) -> bytes:
    """Returns BPF instructions; registers: 0 the result, 1 to 5 arguments, 10 the frame."""
    low, high = struct.unpack("<QQ", os.fsencode(name)[:NAME_LETTERS].ljust(16, b"\0"))
    code = [
        _op(0xBF, 1, 10), _op(0x07, 1, value=-16), _op(0xB7, 2, value=16), _call(_GET_COMM),
        _op(0x79, 1, 10, -16), *_load(2, low), _jump(0x5D, 7, 1, 2),
        _op(0x79, 1, 10, -8), *_load(2, high), _jump(0x5D, 11, 1, 2),
        _call(_GET_IDS), _op(0x77, 0, value=32), _op(0x7B, 10, 0, -24), _op(0x7B, 10, 0, -32),
        # The map has room for one process: the first one gets it.
        *_load(1, 0, source=1), _op(0xBF, 2, 10), _op(0x07, 2, value=-24),
        _op(0xBF, 3, 10), _op(0x07, 3, value=-32), _op(0xB7, 4, value=_NOEXIST), _call(_UPDATE),
        _jump(0x55, 24, 0),
        _op(0xB7, 1, value=_SIGSTOP), _call(_SEND_SIGNAL),
        _op(0xB7, 0), _op(0x95),
    ]  # fmt: skip
    assert len(code) == _EXIT_AT + 2
    return b"".join(code)


def _op(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, to | source << 4, offset, value)


def _jump(code: int, at: int, to: int, source: int = 0) -> bytes:
    """Returns a jump from a position to the program's end."""
    return _op(code, to, source, _EXIT_AT - at - 1)


def _call(helper: int) -> bytes:
    return _op(0x85, value=helper)


def _load(to: int, value: int, source: int = 0) -> tuple[bytes, bytes]:
    """Returns instructions that load 64 bits; with ``source`` 1, the address of a map."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value))
    return _op(0x18, to, source, value=low), _op(0, value=high)
