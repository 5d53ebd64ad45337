"""The side of tracelloc: has workers started, asks them, and goes on without one when it dies.

A question whose file made a worker end is asked once more of a new one, which holds no other
file; if that ends too, the file is not read any more. After too many ends, none is.

There are three workers, so that nobody waits for what takes long: one for names and lines, one for
unwind entries that are made ahead, and one for all that the thread that pumps waits for.
"""

from __future__ import annotations

import atexit
import errno
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from tracelloc.errors import scarcity
from tracelloc.record.worker.channel import ChannelError, receive, send
from tracelloc.record.worker.zygote import ZYGOTE, ForkedWorker
from tracelloc.text import printable

DEFAULT_MEMORY_BYTES: Final = 1 << 30
MOST_ENDS: Final = 8
"""So often the worker may end, then it is not started again: somebody does it on purpose."""
_PATIENCE_S: Final = 300.0
"""For an answer. The worker ends itself long before, unless it is kept from running."""
_LAST_S: Final = 1.0
"""For a process that was killed to be gone."""
_TRIES: Final = 2


class AskedFile(Protocol):
    """A file that the worker is asked about, or what else it knows by a number."""

    number: int
    """By which the worker knows it, no other one's."""
    missing: str
    """What is missing if it can't be read, for people."""
    generation: int
    """Number of the worker process that knows it."""
    failure: str | None
    """Why it is not asked about any more."""

    def beginning(self) -> list[tuple[list[Any], list[int]]]:
        """What a new worker is to be told, and with which descriptors."""


class FileReadError(Exception):
    """A file can't be read. Its text is a reason for people."""

    def __init__(self, why: str, scarce: str | None = None) -> None:
        """``scarce``: what there is too little of here, if that is why."""
        super().__init__(why)
        self.scarce = scarce


class FileWorker:
    """One process for all files, started when first needed. Thread safe."""

    def __init__(
        self, what: str, *, most_ends: int = MOST_ENDS, patience_s: float = _PATIENCE_S
    ) -> None:
        """``what`` is missing of files that can't be read, for people."""
        self.what = what
        self._patience_s = patience_s
        self._most_ends = most_ends
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
        self._process: ForkedWorker | None = None
        self._is_closing = False
        self._has_given_up = False
        self._forgotten: list[int] = []

    def on_trouble(self, tell: Callable[[str], None] | None) -> None:
        """Calls this, from any thread, with what is to be said of files that can't be read."""
        self._tell = tell

    def close(self) -> None:
        """Ends it, also in the middle of an answer. May be started again."""
        self._is_closing = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()
            self._is_closing = False

    def rest(self) -> None:
        """Ends it after what it is at, to have its memory back. It is started again if needed."""
        with self._lock:
            self._end()

    @property
    def rss_bytes(self) -> int:
        """Bytes of memory that it has resident, those that are the zygote's as well included."""
        process = self._process
        return 0 if process is None else process.rss_bytes

    def ask(self, file: AskedFile, what: str, *more: Any, descriptors: Sequence[int] = ()) -> Any:
        """The answer to a question about a file. Raises FileReadError."""
        return self.exchange(file, [what, *more], descriptors=descriptors)[0]

    def exchange(
        self,
        file: AskedFile,
        question: Sequence[Any],
        data: bytes = b"",
        *,
        descriptors: Sequence[int] = (),
        beside: Iterable[AskedFile] = (),
    ) -> tuple[Any, bytes]:
        """The answer to a question and its bytes. Raises FileReadError.

        ``beside``: other files that it has to know.
        """
        with self._lock:
            if file.failure is not None:
                raise FileReadError(file.failure)
            why = ""
            for _ in range(_TRIES):
                if self.ends >= self._most_ends:
                    why = f"what reads them has ended {self.ends} times"
                    if not self._has_given_up:
                        self._has_given_up = True
                        self._say(f"no more {self.what} are read: {why}")
                    raise FileReadError(why)
                try:
                    self._tell_of(file, beside)
                    return self._answer([file.number, *question], data, descriptors)
                except OSError as error:
                    scarce = scarcity(error) if self._process is None else None
                    if scarce is not None:
                        raise FileReadError(scarce, scarce) from error
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
        self.say_missing(file, why)
        raise FileReadError(why)

    def say_missing(self, file: AskedFile, why: str) -> None:
        """Says that something of a file can't be read."""
        self._say(f"{printable(file.missing)} are missing: {why}")

    def _say(self, what: str) -> None:
        if self._tell is not None:
            self._tell(f"warning: {what}")

    def forget(self, file: AskedFile) -> None:
        """Has it close a file, before the next answer."""
        self._forgotten.append(file.number)

    def _tell_of(self, file: AskedFile, beside: Iterable[AskedFile]) -> None:
        """Has it know some files, and forget others."""
        if self._process is None:
            self._process = ZYGOTE.fork(self.memory_bytes)
            self.generation += 1
        while self._forgotten:
            self._answer([self._forgotten.pop(), "close"])
        for each in beside:
            if each.generation != self.generation and each.failure is None:
                try:
                    self._begin(each)
                except FileReadError as error:
                    each.failure = str(error)
        if file.generation != self.generation:
            self._begin(file)

    def _begin(self, file: AskedFile) -> None:
        for words, files in file.beginning():
            self._answer([file.number, *words], descriptors=files)
        file.generation = self.generation

    def _answer(
        self, question: Sequence[Any], data: bytes = b"", descriptors: Sequence[int] = ()
    ) -> tuple[Any, bytes]:
        assert self._process is not None
        channel = self._process.channel
        channel.settimeout(self._patience_s)
        send(channel, question, data, descriptors)
        message, found = receive(channel, self._patience_s)
        if not isinstance(message, dict):
            raise ChannelError("its answer is odd")
        if "error" in message:
            raise FileReadError(str(message["error"])[:200])
        return message.get("answer"), found

    def _end(self, error: OSError | None = None) -> str:
        """Ends it, if it has not after an error. Returns how it did, in words."""
        process, self._process = self._process, None
        if process is None:
            return f"can't be started ({error})"
        process.channel.close()
        status = process.wait(_LAST_S) if isinstance(error, ConnectionError) else None
        if status is not None:
            return _in_words(status)
        process.kill()
        process.wait(_LAST_S)
        return f"was ended ({error})"


def _in_words(status: int) -> str:
    if status == -signal.SIGPROF:
        return "took too long"
    if status == errno.ENOMEM:
        return "needs more memory than it may have (--max-memory)"
    if status < 0:
        return f"was killed by signal {-status}"
    return f"ended with status {status}"


NAME_WORKER: Final = FileWorker("names")
"""Reads symbol tables for names, DWARF and debug files."""
ROW_WORKER: Final = FileWorker("unwind entries")
"""Makes the unwind entries of whole files, ahead of stacks."""
CODE_WORKER: Final = FileWorker("functions and unwind entries")
"""Finds allocators and places for probes, and finishes stacks that the probes could not."""
_WORKERS: Final = (NAME_WORKER, ROW_WORKER, CODE_WORKER)


def prepare_workers(memory_bytes: int, tell: Callable[[str], None]) -> None:
    """Says what each may take, and what hears of files that can't be read."""
    for worker in _WORKERS:
        worker.memory_bytes = memory_bytes
        worker.on_trouble(tell)


def close_workers() -> None:
    """Ends them all."""
    for worker in _WORKERS:
        worker.close()
    ZYGOTE.close()


def workers_memory() -> int:
    """Bytes that are resident in all of them, what they share counted once."""
    shared = ZYGOTE.rss_bytes
    return shared + sum(max(0, worker.rss_bytes - shared) for worker in _WORKERS)


atexit.register(close_workers)
