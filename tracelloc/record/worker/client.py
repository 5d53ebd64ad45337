"""tracelloc's side of the workers: starts and asks workers, and recovers when one dies.

If a worker ends on a question about a file, tracelloc asks a new worker, which knows no other
file. If that ends too, tracelloc stops reading the file. After too many ends, it reads no file.

There are three workers, so that slow questions delay no others: one for names and lines, one for
unwind entries made ahead of time, and one for everything that the pumping thread waits for.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from tracelloc.errors import MalformedError, scarcity
from tracelloc.record.worker import questions
from tracelloc.record.worker.questions import ChannelError, Descriptor, PackedMessage
from tracelloc.record.worker.symbolfilereader import KnownFiles
from tracelloc.record.worker.zygote import ZYGOTE, ForkedWorker
from tracelloc.text import printable

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_MEMORY_BYTES: Final = 1 << 30
# After this many ends the worker is not restarted: someone may be crashing it on purpose.
MOST_ENDS: Final = 8
# Timeout for an answer. The worker ends itself long before, unless it can't run.
_PATIENCE_S: Final = 300.0
_LAST_S: Final = 1.0  # Timeout for the end of a killed process
_TRIES: Final = 2
_NUMBERS: Final[Iterator[int]] = itertools.count()
_ENDS: Final[dict[int, str]] = {
    -signal.SIGPROF: "took too long",
    errno.ENOMEM: "needs more memory than it may have (--max-memory)",
}


class FileReadError(Exception):
    """Raised if a file can't be read. The message is a reason to display."""

    def __init__(self, why: str, scarce: str | None = None) -> None:
        """``scarce``: the resource whose shortage is the reason; None if it is another reason."""
        super().__init__(why)
        self.scarce = scarce


class FileWorker:
    """A worker process that reads files, and is started on demand. Thread safe."""

    def __init__(
        self, what: str, *, most_ends: int = MOST_ENDS, patience_s: float = _PATIENCE_S
    ) -> None:
        """``what``: data that is missing for files that can't be read, for messages."""
        self.what, self._most_ends, self._patience_s = what, most_ends, patience_s
        # Memory that it may use beyond its initial size; applies at the next start
        self.memory_bytes = DEFAULT_MEMORY_BYTES
        self.ends = 0  # How often the worker has ended unexpectedly
        self.generation = 0  # How often the worker was started
        # Receives warnings on unreadable files, from any thread
        self.tell: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._process: ForkedWorker | None = None
        self._is_closing = self._has_given_up = False
        self._forgotten: list[int] = []

    def close(self) -> None:
        """Ends the worker process, even during an answer. It is started again on demand."""
        self._is_closing = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()
            self._is_closing = False

    def end_after_answer(self) -> None:
        """Ends the process after its current answer, to free memory. It is restarted on demand."""
        with self._lock:
            self._end()

    @property
    def rss_bytes(self) -> int:
        """Resident bytes of the worker, including memory shared with the zygote; 0 if none."""
        process = self._process
        return 0 if process is None else process.rss_bytes

    def exchange(self, file: AskedFile, question: PackedMessage) -> tuple[Any, bytes]:
        """Asks a question; returns the undecoded answer and its bytes. Raises FileReadError."""
        with self._lock:
            if file.failure is not None:
                raise FileReadError(file.failure)
            why = ""
            for _ in range(_TRIES):
                if self.ends >= self._most_ends:
                    why = f"the process that reads them has ended {self.ends} times"
                    if not self._has_given_up:
                        self._has_given_up = True
                        self._say(f"{self.what} are no longer read: {why}")
                    raise FileReadError(why)
                try:
                    self._tell_of(file)
                    return self._answer(question)
                except OSError as error:
                    scarce = scarcity(error) if self._process is None else None
                    if scarce is not None:
                        raise FileReadError(scarce, scarce) from error
                    why = f"the process that reads them {self._end(error)}"
                    if self._is_closing:
                        raise FileReadError(why) from error
                    self.ends += 1
                except BaseException as error:
                    # After an interrupt, this answer must not be taken for the next question's.
                    if not isinstance(error, FileReadError):
                        self._end()
                    raise
            file.failure = why
        self.say_missing(file, why)
        raise FileReadError(why)

    def say_missing(self, file: AskedFile, why: str) -> None:
        """Warns the user that data of a file can't be read, and why."""
        self._say(f"{printable(file.missing)} are missing: {why}")

    def _say(self, what: str) -> None:
        if self.tell is not None:
            self.tell(f"warning: {what}")

    def forget(self, file: AskedFile) -> None:
        """Makes the worker close a file, before the next answer."""
        self._forgotten.append(file.number)

    def _tell_of(self, file: AskedFile) -> None:
        """Introduces a file to the worker, if necessary, and closes forgotten ones."""
        if self._process is None:
            self._process = ZYGOTE.fork(self.memory_bytes)
            self.generation += 1
        while self._forgotten:
            self._put(None, KnownFiles.close_file, [self._forgotten.pop()])
        for each in file.beside:
            if each.generation != self.generation and each.failure is None:
                try:
                    self._begin(each)
                except FileReadError as error:
                    each.failure = str(error)
        if file.generation != self.generation:
            self._begin(file)

    def _begin(self, file: AskedFile) -> None:
        for question, arguments in file.introduction():
            self._put(file.number, question, arguments)
        file.generation = self.generation

    def _put(self, number: int | None, question: Callable[..., Any], given: list[Any]) -> None:
        self._answer(PackedMessage([number, question.__name__, given]))

    def _answer(self, question: PackedMessage) -> tuple[Any, bytes]:
        assert self._process is not None
        channel = self._process.channel
        channel.settimeout(self._patience_s)
        questions.send(channel, question)
        message, data = questions.receive(channel, self._patience_s)
        if not isinstance(message, dict):
            raise ChannelError("its answer is odd")
        if "error" in message:
            raise FileReadError(str(message["error"])[:200])
        return message.get("answer"), data

    def _end(self, error: OSError | None = None) -> str:
        """Ends the worker if it has not ended after an error. Returns how it ended, in words."""
        process, self._process = self._process, None
        if process is None:
            return f"can't be started ({error})"
        process.channel.close()
        status = process.wait(_LAST_S) if isinstance(error, ConnectionError) else None
        if status is None:
            process.kill()
            process.wait(_LAST_S)
            return f"was ended ({error})"
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return _ENDS.get(status, how)


class AskedFile:
    """A file, or another object, about which tracelloc asks a worker questions."""

    def __init__(self, worker: FileWorker, missing: str) -> None:
        """``missing``: data that is missing if the file can't be read, for messages."""
        self.number = next(_NUMBERS)  # The unique number by which the worker knows the file
        self.missing = missing
        self.generation = 0  # The number of the worker process that knows the file
        self.failure: str | None = None  # Why the file can't be asked about any more
        self.beside: Sequence[AskedFile] = ()  # Other files that the worker must know
        self._worker = worker

    def introduction(self) -> list[tuple[Callable[..., Any], list[Any]]]:
        """Returns questions that introduce the object to a new worker, with arguments."""
        return []

    def ask(
        self, question: Callable[Concatenate[Any, P], R], *given: P.args, **named: P.kwargs
    ) -> R:
        """Returns the result of a method with ``@question`` in the worker. Raises FileReadError."""
        assert not named
        name = question.__name__
        message, data = self._worker.exchange(self, PackedMessage([self.number, name, given]))
        try:
            answer: R = questions.QUESTIONS[name].answer(message, data, given)
        except MalformedError as error:
            raise FileReadError(f"a malformed reply to {name.replace('_', ' ')!r}") from error
        return answer


class FileHandle(AskedFile):
    """A file that a worker reads. Every question may raise FileReadError."""

    def __init__(self, worker: FileWorker, descriptor: int, path: str) -> None:
        """``descriptor``: the caller keeps it open; ``path``: for display."""
        super().__init__(worker, f"{worker.what} in {path}")
        self.path = path
        self._descriptor = descriptor

    def introduction(self) -> list[tuple[Callable[..., Any], list[Any]]]:
        return [(KnownFiles.open_file, [self.number, Descriptor(self._descriptor)])]

    def close(self) -> None:
        self._worker.forget(self)


class asked(Generic[P, R]):  # noqa: N801 - a decorator's kin
    """Declares a method of a ``FileHandle`` that asks a worker a question."""

    def __init__(self, question: Callable[Concatenate[Any, P], R]) -> None:
        self._question = question

    def __get__(self, file: FileHandle, owner: type) -> Callable[P, R]:
        return partial(file.ask, self._question)


NAME_WORKER: Final = FileWorker("names")  # Reads symbol tables for names, DWARF and debug files
# Makes the unwind entries of whole files, before stacks need them.
ROW_WORKER: Final = FileWorker("unwind entries")
# Finds allocators and probe offsets, and finishes stacks that the probes could not.
CODE_WORKER: Final = FileWorker("functions and unwind entries")
_WORKERS: Final = (NAME_WORKER, ROW_WORKER, CODE_WORKER)


def prepare_workers(memory_bytes: int, tell: Callable[[str], None]) -> None:
    """Sets each worker's memory limit, and ``tell``, which gets warnings on unreadable files."""
    for worker in _WORKERS:
        worker.memory_bytes = memory_bytes
        worker.tell = tell


def close_workers() -> None:
    """Ends all workers and the zygote."""
    for worker in _WORKERS:
        worker.close()
    ZYGOTE.close()


def workers_memory() -> int:
    """Returns the resident bytes of all workers, counting shared memory once."""
    shared = ZYGOTE.rss_bytes
    return shared + sum(max(0, worker.rss_bytes - shared) for worker in _WORKERS)


atexit.register(close_workers)
