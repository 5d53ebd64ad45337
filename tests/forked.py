"""tracelloc's processes for most tests, forked from one that has its modules already.

To import the modules takes half of the processor time of a short run, and tests begin more than a
thousand. What is forked is as real as what is executed: it runs ``tracelloc.__main__.main`` on
arguments, streams and a directory of its own, and is the test's child (CLONE_PARENT,
clone(2)). Only its last report waits for names for as long as tests do (``tests/patient.py``).
Tests of how tracelloc starts execute it.
"""

import ctypes
import gc
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# How long anything may take before a test gives up; never how long it waits.
PATIENCE_S: Final = float(os.environ.get("TEST_PATIENCE_S", "180"))
PR_GET_TID_ADDRESS: Final = 40
SYS_CLONE: Final = 56
CLONE_PARENT: Final = 0x8000
CLONE_CHILD_CLEARTID: Final = 0x20_0000
CLONE_CHILD_SETTID: Final = 0x100_0000
_LENGTH: Final = struct.Struct("<I")
_CURRENT_TEST: Final = "PYTEST_CURRENT_TEST"
# How variables begin that are read before the first line of Python.
_EARLY: Final = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OPENBLAS_", "LC_", "LANG")


class Forker:
    """The process that forks; it is started when it is needed, and ends with this one."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self.variables: dict[str, str] | None = None
        """The environment in which it runs: in /proc, all that it forks seems to have that."""

    def can_fork(self, variables: Mapping[str, str], *, has_command: bool) -> bool:
        """Whether what is forked would be as what is executed with these variables.

        ``has_command``: it starts a program, which gets the variables that are in /proc.
        """
        if platform.machine() != "x86_64" or self.variables is None:
            return False
        changed = {name for name, _ in {*variables.items()} ^ {*self.variables.items()}}
        if any(has_command or name.startswith(_EARLY) for name in changed - {_CURRENT_TEST}):
            return False
        if self._control is None:
            self._start()
        return self._is_ready

    def remember_variables(self) -> None:
        """Takes the environment as it is now for that of all tests that do not change it."""
        self.variables = {name: e for name, e in os.environ.items() if name != _CURRENT_TEST}

    def fork(
        self,
        arguments: Sequence[str],
        directory: str | None,
        streams: list[int],
        variables: Mapping[str, str],
    ) -> int:
        """Starts tracelloc. Returns its PID."""
        words = [str(word) for word in arguments]
        given = json.dumps([words, str(directory or Path.cwd()), {**variables}]).encode()
        socket.send_fds(self._control, [_LENGTH.pack(len(given))], streams)
        self._control.sendall(given)
        (pid,) = _LENGTH.unpack(_read(self._control, _LENGTH.size))
        assert pid > 1
        return int(pid)

    def _start(self) -> None:
        ours, its = socket.socketpair()
        root = Path(__file__).parents[1]
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(its.fileno())],
                cwd=root, env=self.variables, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()],
            )  # fmt: skip
        self._control = ours
        self._is_ready = ours.recv(1) != b""


FORKER: Final = Forker()


# The options that `ForkedPopen` heeds.
FORK_OPTIONS: Final = {"stdin", "stdout", "stderr", "bufsize", "text", "cwd", "env"}


class ForkedPopen(subprocess.Popen[Any]):
    """``Popen`` of tracelloc's arguments."""

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        arguments, directory, variables = given[0], given[5], given[6]
        read, _, _, written, _, errors = pipes = given[10:16]
        try:
            self.pid = FORKER.fork(
                arguments, directory, [read, written, errors], variables or os.environ
            )
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _read(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = stream.recv(size - len(found))
        if not piece:
            raise EOFError("the other process has ended")
        found += piece
    return found


def _import_modules() -> None:
    """Imports what a trace needs, in tracelloc's own order."""
    import tracelloc.__main__  # noqa: F401
    from tracelloc.command import cli  # noqa: F401
    from tracelloc.startup import import_numpy

    import_numpy()
    import zipfile  # noqa: F401

    import numpy.ma  # noqa: F401

    from tracelloc.command import lifecycle, options, reports, run  # noqa: F401
    from tracelloc.record.worker import service  # noqa: F401
    from tracelloc.show.filters import files

    # Python keeps compiled patterns: half of the time of a short trace's report.
    for rule in files.shipped_rules().rules:
        rule.tester()
    gc.collect()
    gc.freeze()


def _fork_zygote() -> None:
    """Has tracelloc fork its first zygote off itself, which then need not import anything."""
    from tracelloc.record.worker.zygote import ZYGOTE

    start = ZYGOTE.start

    def fork() -> None:
        ZYGOTE.start = start  # type: ignore[method-assign]
        (start if threading.active_count() > 1 else ZYGOTE.fork_off)()

    ZYGOTE.start = fork  # type: ignore[method-assign]


def serve(control: socket.socket) -> bool:
    """Forks whenever it is asked to. Returns whether this is the new process."""
    libc = ctypes.PyDLL(None, use_errno=True)
    thread_id = ctypes.c_void_p()
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(thread_id)) != 0:
        return False  # a kernel without CONFIG_CHECKPOINT_RESTORE
    control.sendall(b"!")
    flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | signal.SIGCHLD
    while True:
        header, streams, *_ = socket.recv_fds(control, _LENGTH.size, 3)
        if not header:
            return False
        given = json.loads(_read(control, *_LENGTH.unpack(header)))
        # There is one thread, so the C library need not know of the fork but for the thread's id.
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = libc.syscall(SYS_CLONE, flags, 0, None, thread_id, 0)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            control.close()
            _become(*given, streams)
            return True
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for stream in streams:
            os.close(stream)
        control.sendall(_LENGTH.pack(max(pid, 0)))


def _become(
    arguments: list[str], directory: str, variables: dict[str, str], streams: list[int]
) -> None:
    """Makes this process what it would be, had it been executed."""
    os.environ.clear()
    os.environ.update(variables)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(directory)
    sys.argv[1:] = arguments
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


if __name__ == "__main__":
    _import_modules()
    from tests.patient import be_patient

    be_patient()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        from tracelloc.__main__ import main

        _fork_zygote()
        sys.exit(main())
