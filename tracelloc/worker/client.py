"""The side of tracelloc: starts the worker, asks it, and goes on without it when it dies.

A question whose file made the worker end is asked once more of a new one, which holds no other
file; if that ends too, the file has no names. After too many ends, nothing has any more.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from tracelloc.confined import CONFINE, start_reader
from tracelloc.text import printable
from tracelloc.worker.channel import ChannelError, receive, send

DEFAULT_MEMORY_BYTES: Final = 1 << 30
LEAST_MEMORY_BYTES: Final = 128 << 20
MOST_ENDS: Final = 8
"""So often the worker may end, then it is not started again: somebody does it on purpose."""
_PATIENCE_S: Final = 300.0
"""For an answer. The worker ends itself long before, unless it is kept from running."""
_LAST_S: Final = 1.0
"""For a process that was killed to be gone."""
_TRIES: Final = 2
_MOST_FILES: Final = 4096

SCRIPT = f"""{CONFINE}
import sys
sys.path[:0] = sys.argv[2:]
from tracelloc.worker.service import serve
with open("/proc/self/statm") as file:
    own_bytes = int(file.read().split()[0]) * resource.getpagesize()
confine(own_bytes + int(sys.argv[1]), {_MOST_FILES}, opens=False)
serve()
"""


class AskedFile(Protocol):
    """A file that the worker is asked about."""

    number: int
    """By which the worker knows it, no other one's."""
    path: str
    """For people."""
    generation: int
    """Number of the worker process that knows it."""
    failure: str | None
    """Why it is not asked about any more."""

    def beginning(self) -> list[tuple[list[Any], list[int]]]:
        """What a new worker is to be told, and with which descriptors."""


class FileReadError(Exception):
    """A file can't be read. Its text is a reason for people."""


class FileWorker:
    """One process for all files, started when first needed. Thread safe."""

    def __init__(self) -> None:
        self.memory_bytes = DEFAULT_MEMORY_BYTES
        """What it may take beyond itself; for the next start."""
        self.ends = 0
        """How often it has ended by itself."""
        self.unread_files = 0
        """How many files it has ended for."""
        self.generation = 0
        """How often it was started."""
        self._tell: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_closing = False
        self._has_given_up = False
        self._forgotten: list[int] = []

    def on_trouble(self, tell: Callable[[str], None] | None) -> None:
        """Calls this, from any thread, with what is to be said of files that can't be read."""
        self._tell = tell

    def start(self) -> None:
        """Starts it, if it is not there: it gets ready while others do something else."""
        with self._lock, suppress(OSError):
            self._ensure()

    def close(self) -> None:
        """Ends it, also in the middle of an answer. May be started again."""
        self._is_closing = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()
            self._is_closing = False

    @property
    def rss_bytes(self) -> int:
        """Bytes of memory that it has resident."""
        process = self._process
        if process is None:
            return 0
        try:
            pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def ask(self, file: AskedFile, what: str, *more: Any, descriptors: Sequence[int] = ()) -> Any:
        """The answer to a question about a file. Raises FileReadError."""
        with self._lock:
            if file.failure is not None:
                raise FileReadError(file.failure)
            why = ""
            for _ in range(_TRIES):
                if self.ends >= MOST_ENDS:
                    why = f"what reads them has ended {self.ends} times"
                    if not self._has_given_up:
                        self._has_given_up = True
                        self._say(f"no more names are read: {why}")
                    raise FileReadError(why)
                try:
                    return self._exchange(file, what, more, descriptors)
                except OSError as error:
                    why = f"what reads them {self._end(error)}"
                    if self._is_closing:
                        raise FileReadError(why) from error
                    self.ends += 1
                except BaseException as error:
                    # After an interrupt, the answer may not be taken for the next one's.
                    if not isinstance(error, FileReadError):
                        self._end()
                    raise
            file.failure = why
            self.unread_files += 1
        self._say(f"names in {printable(file.path)} are missing: {why}")
        raise FileReadError(why)

    def _say(self, what: str) -> None:
        if self._tell is not None:
            self._tell(f"warning: {what}")

    def forget(self, file: AskedFile) -> None:
        """Has it close a file, before the next answer."""
        self._forgotten.append(file.number)

    def _ensure(self) -> None:
        if self._process is not None:
            return
        if not sys.executable:
            raise OSError("Python's own program is not known")
        package = str(Path(__file__).parents[2])
        paths = [package, *(path for path in sys.path if path and path != package)]
        ours, its = socket.socketpair()
        try:
            with its:
                self._process = start_reader(
                    [SCRIPT, str(max(self.memory_bytes, LEAST_MEMORY_BYTES)), *paths],
                    {"OPENBLAS_NUM_THREADS": "1"},
                    channel=its.fileno(),
                )
        except BaseException:
            ours.close()
            raise
        self._channel = ours
        self.generation += 1

    def _exchange(
        self, file: AskedFile, what: str, more: Sequence[Any], descriptors: Sequence[int]
    ) -> Any:
        self._ensure()
        while self._forgotten:
            self._answer([self._forgotten.pop(), "close"])
        if file.generation != self.generation:
            for words, files in file.beginning():
                self._answer([file.number, *words], files)
            file.generation = self.generation
        return self._answer([file.number, what, *more], descriptors)

    def _answer(self, question: Sequence[Any], descriptors: Sequence[int] = ()) -> Any:
        assert self._channel is not None
        self._channel.settimeout(_PATIENCE_S)
        send(self._channel, question, descriptors=descriptors)
        message, _ = receive(self._channel, _PATIENCE_S)
        if not isinstance(message, dict):
            raise ChannelError("its answer is odd")
        if "error" in message:
            raise FileReadError(str(message["error"])[:200])
        return message.get("answer")

    def _end(self, error: OSError | None = None) -> str:
        """Ends it, if it has not after an error. Returns how it did, in words."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if process is None:
            return f"can't be started ({error})"
        status = _status(process) if isinstance(error, ConnectionError) else None
        if status is not None:
            return _in_words(status)
        process.kill()
        _status(process)
        return f"was ended ({error})"


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """How it has ended; None if it has not."""
    try:
        return process.wait(_LAST_S)
    except subprocess.TimeoutExpired:
        return None


def _in_words(status: int) -> str:
    if status == -signal.SIGPROF:
        return "took too long"
    if status == errno.ENOMEM:
        return "needs more memory than it may have (--max-memory)"
    if status < 0:
        return f"was killed by signal {-status}"
    return f"ended with status {status}"


WORKER: Final = FileWorker()
"""The program's own."""
atexit.register(WORKER.close)
