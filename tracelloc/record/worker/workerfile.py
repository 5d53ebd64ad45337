"""One file as read by a worker: its symbols, lines and inlined functions.

Answers are trusted no more than the file itself: values of other types, and
functions that can't be at an address, are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracelloc.files.dwarf import Chain, SourceFrame
from tracelloc.files.dwarf.variables import Place
from tracelloc.files.elf import Symbol
from tracelloc.files.elf.debugfiles import DebugFile, DebugReferences
from tracelloc.files.elf.file import DataLayout
from tracelloc.record.worker.client import FileWorker
from tracelloc.record.worker.handle import FileHandle, text_or_none, whole_number


class WorkerFile(FileHandle):
    """Symbols and lines of a file. Every question may raise FileReadError."""

    def __init__(self, worker: FileWorker, descriptor: int, path: str) -> None:
        super().__init__(worker, descriptor, path)
        self._debug: DebugFile | None = None
        self._decoded: set[bool] = set()

    def beginning(self) -> list[tuple[list[Any], list[int]]]:
        """Returns the messages that introduce it to a new worker, with their descriptors."""
        told = super().beginning()
        if self._debug is not None:
            told.append((["debug", self._debug.by_name], [self._debug.descriptor()]))
        return told + [(["decode", of_debug], []) for of_debug in self._decoded]

    def describe(self) -> tuple[bool, bool, DebugReferences]:
        """Returns whether it has a symbol table, whether lines, and its debug file references."""

        def decode(answer: Any) -> tuple[bool, bool, DebugReferences]:
            has_symbols, has_lines, build_id, name, checksum = answer
            references = DebugReferences(text_or_none(build_id), text_or_none(name), checksum)
            return bool(has_symbols), bool(has_lines), references

        return self._asked(decode, "describe")

    def take_debug_file(self, found: DebugFile) -> tuple[bool, bool]:
        """Returns whether a file is its debug file, which must then stay open, and has lines."""

        def decode(answer: Any) -> tuple[bool, bool]:
            fits, has_lines = answer
            return bool(fits), bool(has_lines)

        fits, has_lines = self._asked(
            decode, "debug", found.by_name, descriptors=[found.descriptor()]
        )
        if fits:
            self._debug = found
        return fits, has_lines

    def count(self) -> tuple[int, bool, list[str]]:
        """Returns the number of named functions, whether a symbol table is embedded, troubles."""

        def decode(answer: Any) -> tuple[int, bool, list[str]]:
            functions, has_embedded, troubles = answer
            return int(functions), bool(has_embedded), [str(each) for each in troubles]

        return self._asked(decode, "count")

    def symbols(self, addresses: Sequence[int]) -> list[Symbol | None]:
        """Returns the function at each address; None if there is none."""

        def decode(answer: Any) -> list[Symbol | None]:
            return [_symbol(*pair) for pair in zip(answer, addresses, strict=True)]

        return self._asked(decode, "symbols", addresses)

    def variables(self, addresses: Sequence[int], *, of_threads: bool) -> list[Symbol | None]:
        """Returns the variable at each address; None if there is none.

        ``of_threads``: thread-local ones, at offsets from the first of them.
        """

        def decode(answer: Any) -> list[Symbol | None]:
            return [_symbol(*pair) for pair in zip(answer, addresses, strict=True)]

        return self._asked(decode, "variables", addresses, of_threads)

    def data_layout(self) -> DataLayout:
        """Returns where the file's variables lie."""

        def decode(answer: Any) -> DataLayout:
            segments, size_bytes, alignment = answer
            return DataLayout(
                tuple((whole_number(start), whole_number(end)) for start, end in segments),
                whole_number(size_bytes),
                max(whole_number(alignment), 1),
            )

        return self._asked(decode, "data layout")

    def decoder(self, *, of_debug: bool) -> FileDecoder | str:
        """Returns a decoder of the lines in it or its debug file; or why there is none."""
        reason = self._asked(text_or_none, "decode", of_debug)
        if reason is not None:
            return reason
        self._decoded.add(of_debug)
        return FileDecoder(self, of_debug=of_debug)

    def chains(
        self, addresses: Sequence[int], *, of_debug: bool
    ) -> tuple[list[Chain], list[str | None], str | None]:
        """Returns one chain per address, paths for ``LineDecoder``, and why data is missing."""

        def decode(answer: Any) -> tuple[list[Chain], list[str | None], str | None]:
            chains, paths, reason = answer
            found = [
                tuple(_source_frame(*frame) for frame in chain)
                for chain, _ in zip(chains, addresses, strict=True)
            ]
            split = [text_or_none(path) for path, _ in zip(paths, addresses, strict=True)]
            return found, split, text_or_none(reason)

        return self._asked(decode, "chains", addresses, of_debug)

    def variable_places(self, addresses: Sequence[int], *, of_debug: bool) -> list[Place]:
        """Returns where the variables at these addresses are declared."""

        def decode(answer: Any) -> list[Place]:
            return [
                (text_or_none(file), None if line is None else whole_number(line))
                for (file, line), _ in zip(answer, addresses, strict=True)
            ]

        return self._asked(decode, "variable places", addresses, of_debug)


class FileDecoder:
    """Lines and inlined functions: a ``LineDecoder`` (``tracelloc.files.dwarf.sourcelines``)."""

    def __init__(self, file: WorkerFile, *, of_debug: bool) -> None:
        self.split_paths: list[str | None] = []
        self.reason: str | None = None
        self._file = file
        self._of_debug = of_debug

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns one chain per address. Raises FileReadError."""
        found, self.split_paths, self.reason = self._file.chains(addresses, of_debug=self._of_debug)
        return found

    def variables(self, addresses: Sequence[int]) -> list[Place]:
        """Returns where the variables at these addresses are declared. Raises FileReadError."""
        return self._file.variable_places(addresses, of_debug=self._of_debug)


def _symbol(fields: Any, address: int) -> Symbol | None:
    if fields is None:
        return None
    name, start, size = fields
    if not (isinstance(name, str) and 0 <= start <= address and 0 <= size < 1 << 64):
        raise ValueError
    return Symbol(name, int(start), int(size))


def _source_frame(function: Any, file: Any, line: Any, inlined: Any) -> SourceFrame:
    return SourceFrame(
        text_or_none(function),
        text_or_none(file),
        None if line is None else int(line),
        inlined=bool(inlined),
    )
