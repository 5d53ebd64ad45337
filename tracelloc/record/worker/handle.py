"""A file that is open in tracelloc, and known to a worker by a number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tracelloc.record.worker.channel import Descriptor
from tracelloc.record.worker.client import AskedFile, FileWorker
from tracelloc.record.worker.knownfiles import KnownFiles

P = ParamSpec("P")
R = TypeVar("R")


class FileHandle(AskedFile):
    """One file. Every question may raise FileReadError."""

    def __init__(self, worker: FileWorker, descriptor: int, path: str) -> None:
        """The caller keeps the descriptor open; ``path`` is for display."""
        super().__init__(f"{worker.what} in {path}")
        self.path = path
        self._worker = worker
        self._descriptor = descriptor

    def beginning(self) -> list[tuple[Callable[..., Any], list[Any]]]:
        """Returns the questions that introduce it to a new worker, with their arguments."""
        return [(KnownFiles.open_file, [self.number, Descriptor(self._descriptor)])]

    def close(self) -> None:
        """Makes the worker close the file."""
        self._worker.forget(self)

    def ask(
        self, question: Callable[Concatenate[Any, P], R], *given: P.args, **named: P.kwargs
    ) -> R:
        """Returns what a method of ``ReadFile`` returns in the worker."""
        return self._worker.ask(self, question, *given, **named)


class asked(Generic[P, R]):  # noqa: N801 - a decorator's kin
    """A method of a ``FileHandle`` that asks a question."""

    def __init__(self, question: Callable[Concatenate[Any, P], R]) -> None:
        self._question = question

    def __get__(self, file: FileHandle, owner: type) -> Callable[P, R]:
        return partial(file.ask, self._question)
