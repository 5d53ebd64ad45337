"""The process that forks workers: Python and all modules that read files, imported once.

It drops all privileges (``tracelloc.system.confined``) before it forks the first worker, and
never reads a target's file. Workers are tracelloc's own children (CLONE_PARENT, clone(2)), so
that tracelloc learns how each has ended.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelloc.record.worker.questions import ChannelError, Descriptor, receive, send
from tracelloc.system.confined import CONFINE, start_reader

LEAST_MEMORY_BYTES: Final = 128 << 20
_MOST_FILES: Final = 4096
# Address space in bytes, effectively unlimited. Each worker has its own limit.
_MOST_ADDRESSES: Final = 1 << 46
# Timeout for a fork: on a busy machine, the imports before the first one take some seconds.
_PATIENCE_S: Final = 60.0
_TRIES: Final = 2

# Source of the process, which imports what this one has not: nothing, if it is forked off.
_SERVE: Final = f"""{CONFINE}
from tracelloc.record.worker.service import fork_workers
with open("/proc/self/statm") as file:
    own_bytes = int(file.read().split()[0]) * resource.getpagesize()
confine({_MOST_ADDRESSES}, {_MOST_FILES}, role="zygote")
fork_workers(own_bytes, lambda: filter_calls("reader"))
"""
SCRIPT = f"import sys\nsys.path[:0] = sys.argv[1:]\n{_SERVE}"


class ForkedWorker:
    """A worker process, forked by the zygote as a child of tracelloc. Thread safe."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        """``channel``: to the worker. Raises OSError if there is no such child."""
        self.pid = pid
        self.channel = channel
        self._lock = threading.Lock()
        self._status: int | None = None
        self._descriptor = os.pidfd_open(pid)
        os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    @property
    def rss_bytes(self) -> int:
        return rss_of(self.pid)

    def kill(self) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._status is None:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int | None:
        """Returns the exit code like ``subprocess``, once; None if the worker still runs."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return None
        with self._lock:
            try:
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError:  # another waiter was first
                status = 0
            os.close(self._descriptor)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status


def rss_of(pid: int) -> int:
    """Returns the resident memory of a process in bytes; 0 if it has ended."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


class Zygote:
    """The process that forks workers; it is started on demand, or again. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | ForkedWorker | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Starts the process, if it is not running, so that it gets ready in the background."""
        with self._lock, suppress(OSError):
            self._ensure()

    def fork_off(self) -> None:
        """Forks the process off this one, which has no threads yet: a new Python costs 0.1 s more.

        It shares this process's memory, so only for who trusts the program that is traced.
        """
        ours, its = socket.socketpair()
        pid = os.fork()
        if not pid:
            try:
                _serve_as_copy(its.fileno())
            finally:
                os._exit(1)
        its.close()
        self._process, self._control = ForkedWorker(pid, ours), ours

    def fork(self, memory_bytes: int) -> ForkedWorker:
        """Forks a worker; ``memory_bytes``: its limit beyond shared memory. Raises OSError."""
        with self._lock:
            for tries_left in reversed(range(_TRIES)):
                try:
                    return self._fork(max(memory_bytes, LEAST_MEMORY_BYTES))
                except BaseException as error:
                    # After an interrupt, this answer must not be taken for the next question's.
                    self._end()
                    if not (tries_left and isinstance(error, OSError)):
                        raise
            raise AssertionError

    @property
    def rss_bytes(self) -> int:
        """Resident bytes of the zygote, most of which workers share."""
        return 0 if (process := self._process) is None else rss_of(process.pid)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _fork(self, memory_bytes: int) -> ForkedWorker:
        control = self._ensure()
        ours, its = socket.socketpair()
        try:
            with its:
                control.settimeout(_PATIENCE_S)
                send(control, [memory_bytes, Descriptor(its.fileno())])
            pid, _ = receive(control, _PATIENCE_S)
            if not isinstance(pid, int) or pid <= 1:
                raise ChannelError("its answer is odd")
            return ForkedWorker(pid, ours)
        except BaseException:
            ours.close()
            raise

    def _ensure(self) -> socket.socket:
        if self._control is not None:
            return self._control
        if not sys.executable:
            raise OSError("Python's own program is not known")
        package = str(Path(__file__).parents[3])
        paths = [package, *(path for path in sys.path if path and path != package)]
        ours, its = socket.socketpair()
        try:
            with its:
                self._process = start_reader(
                    [SCRIPT, *paths], {"OPENBLAS_NUM_THREADS": "1"}, channel=its.fileno()
                )
        except BaseException:
            ours.close()
            raise
        self._control = ours
        return ours

    def _end(self) -> None:
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            process.wait(_PATIENCE_S)


def _serve_as_copy(channel: int) -> None:
    os.setsid()
    os.chdir("/")
    os.dup2(channel, 0)
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    # One by one, as containers may refuse close_range(2).
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2:
            with suppress(OSError):
                os.close(number)
    exec(_SERVE, {})  # noqa: S102 - as another Python would
    os._exit(0)


ZYGOTE: Final = Zygote()
atexit.register(ZYGOTE.close)
