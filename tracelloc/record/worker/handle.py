"""A file that is open in tracelloc, and known to a worker by a number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from tracelloc.record.worker.client import FileReadError, FileWorker

T = TypeVar("T")
NUMBERS: Final[Iterator[int]] = itertools.count()
"""Numbers of everything about which workers are asked."""


class FileHandle:
    """One file. Every question may raise FileReadError."""

    def __init__(self, worker: FileWorker, descriptor: int, path: str) -> None:
        """The caller keeps the descriptor open; ``path`` is for display."""
        self.number = next(NUMBERS)
        self.path = path
        self.missing = f"{worker.what} in {path}"
        self.generation = 0
        self.failure: str | None = None
        self._worker = worker
        self._descriptor = descriptor

    def beginning(self) -> list[tuple[list[Any], list[int]]]:
        """Returns the messages that introduce it to a new worker, with their descriptors."""
        return [(["open"], [self._descriptor])]

    def close(self) -> None:
        """Makes the worker close the file."""
        self._worker.forget(self)

    def exchange(self, *question: Any, data: bytes = b"") -> tuple[Any, bytes]:
        """Returns the unchecked answer, and its bytes."""
        return self._worker.exchange(self, question, data)

    def _asked(
        self, decode: Callable[[Any], T], what: str, *more: Any, descriptors: Sequence[int] = ()
    ) -> T:
        """Returns the result of ``decode`` for the answer."""
        answer = self._worker.ask(self, what, *more, descriptors=descriptors)
        with odd_answers(what):
            return decode(answer)
        raise AssertionError


class odd_answers:  # noqa: N801 - a context manager, used as a function
    """Turns errors in the processing of an answer into FileReadError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | TypeError | OverflowError):
            raise FileReadError(f"an odd answer to {self._what!r}") from error


def text_or_none(value: object) -> str | None:
    """Returns the value if it is text or None. Raises TypeError."""
    if not isinstance(value, str | None):
        raise TypeError
    return value


def whole_number(value: object) -> int:
    """Returns the value if it is an unsigned 64-bit integer. Raises TypeError, ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    if not 0 <= value < 1 << 64:
        raise ValueError
    return value


def text(value: object) -> str:
    """Returns the value if it is text. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError
    return value
