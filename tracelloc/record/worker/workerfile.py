"""One file as read by a worker: its symbols, lines and inlined functions.

Answers are trusted no more than the file itself: values of other types, and
functions that can't be at an address, are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracelloc.files.dwarf import Chain
from tracelloc.files.dwarf.variables import Place
from tracelloc.files.elf.debugfiles import DebugFile
from tracelloc.record.worker.channel import Descriptor
from tracelloc.record.worker.client import FileHandle, FileWorker, asked
from tracelloc.record.worker.readfile import ReadFile


class WorkerFile(FileHandle):
    """Symbols and lines of a file. Every question may raise FileReadError."""

    def __init__(self, worker: FileWorker, descriptor: int, path: str) -> None:
        super().__init__(worker, descriptor, path)
        self._debug: DebugFile | None = None
        self._decoded: set[bool] = set()

    describe = asked(ReadFile.describe)
    count = asked(ReadFile.count)
    symbols = asked(ReadFile.symbols)
    variables = asked(ReadFile.variables)
    data_layout = asked(ReadFile.data_layout)

    def beginning(self) -> list[tuple[Callable[..., Any], list[Any]]]:
        """Returns the questions that introduce it to a new worker, with their arguments."""
        told = super().beginning()
        if self._debug is not None:
            descriptor = Descriptor(self._debug.descriptor())
            told.append((ReadFile.add_debug_file, [descriptor, self._debug.by_name]))
        return told + [(ReadFile.decode, [of_debug]) for of_debug in self._decoded]

    def take_debug_file(self, found: DebugFile) -> tuple[bool, bool]:
        """Returns whether a file is its debug file, which must then stay open, and has lines."""
        descriptor = Descriptor(found.descriptor())
        fits, has_lines = self.ask(ReadFile.add_debug_file, descriptor, found.by_name)
        if fits:
            self._debug = found
        return fits, has_lines

    def decoder(self, *, of_debug: bool) -> FileDecoder | str:
        """Returns a decoder of the lines in it or its debug file; or why there is none."""
        reason = self.ask(ReadFile.decode, of_debug)
        if reason is not None:
            return reason
        self._decoded.add(of_debug)
        return FileDecoder(self, of_debug=of_debug)


class FileDecoder:
    """Lines and inlined functions: a ``LineDecoder`` (``tracelloc.files.dwarf.sourcelines``)."""

    def __init__(self, file: WorkerFile, *, of_debug: bool) -> None:
        self.split_paths: list[str | None] = []
        self.reason: str | None = None
        self._file = file
        self._of_debug = of_debug

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns one chain per address. Raises FileReadError."""
        found, self.split_paths, self.reason = self._file.ask(
            ReadFile.chains, addresses, self._of_debug
        )
        return found

    def variables(self, addresses: Sequence[int]) -> list[Place]:
        """Returns where the variables at these addresses are declared. Raises FileReadError."""
        return self._file.ask(ReadFile.variable_places, addresses, self._of_debug)
