"""One file of code that the target has mapped, as read by a worker.

Answers are trusted no more than the file itself: values of other types, and functions that can't
be at an address, are errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from tracelloc.files.dwarf import Chain
from tracelloc.files.dwarf.variables import SourcePlace
from tracelloc.files.elf import NotElfError
from tracelloc.files.elf.debugfiles import DebugFile
from tracelloc.files.elf.headers import SegmentedFile
from tracelloc.record.worker.client import CODE_WORKER, FileHandle, FileReadError, FileWorker, asked
from tracelloc.record.worker.codefilereader import CodeFileReader, FunctionExits, UsdtPlace
from tracelloc.record.worker.questions import Descriptor
from tracelloc.record.worker.symbolfilereader import SymbolFileReader
from tracelloc.text import printable

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_READ: Final = 1 << 20  # Most bytes per read
_NOT_ELF: Final = "NotElfError: "


class asked_once(Generic[P, T]):  # noqa: N801 - a decorator's kin
    """Declares a method of ``TargetFile`` that asks a question once; ``otherwise``: on failure."""

    def __init__(self, question: Callable[Concatenate[Any, P], T], otherwise: T) -> None:
        self._question = question
        self._otherwise = otherwise

    def __get__(self, file: TargetFile, owner: type) -> Callable[P, T]:
        return partial(file.ask_once, self._otherwise, self._question)


class TargetFile(FileHandle, SegmentedFile):
    """A code file of the target, read by a worker. Addresses are the file's own. Thread safe.

    Data that can't be read is treated as missing: the worker's failure has been reported by then.
    """

    def __init__(self, descriptor: int, path: str, worker: FileWorker = CODE_WORKER) -> None:
        """Takes ownership of the descriptor. Raises NotElfError, FileReadError after closing it."""
        super().__init__(worker, descriptor, path)
        self._functions: dict[str, dict[int, int]] = {}
        self._tails: dict[str, set[str]] = {}
        # Functions that the file exports, among those looked up
        self.exports: Final[set[str]] = set()
        self.imports: Final[set[str]] = set()  # The same for functions that it imports
        self._results: dict[tuple[str, str], Any] = {}
        # Offsets of the requested USDT probes: stacks may begin there
        self.usdt_offsets: Final[set[int]] = set()
        try:
            facts = self.ask(CodeFileReader.facts)
        except BaseException as error:
            self.close()
            if isinstance(error, FileReadError) and str(error).startswith(_NOT_ELF):
                raise NotElfError(str(error).removeprefix(_NOT_ELF)) from error
            raise
        self.segments, self.troubles = facts.segments, facts.troubles
        self.has_frames, self.has_tables = facts.has_frames, facts.has_tables
        self.build_id, self.is_go = facts.build_id, facts.is_go
        self.unwind_sections, self.dynamic_names = facts.unwind_sections, facts.dynamic_names

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> TargetFile:
        """Creates a file that exists in memory only. Raises OSError, NotElfError, FileReadError."""
        descriptor = os.memfd_create("elf", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
        except OSError as error:
            os.close(descriptor)
            raise NotElfError(str(error)) from error
        return cls(descriptor, path)

    def descriptor(self) -> int:
        return self._descriptor

    @property
    def open_path(self) -> str:
        """A path by which tracelloc and the kernel can open the file while this object is open."""
        return f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        """Closes the file, here and in the worker. May be called twice."""
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self.failure = "it is closed"

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Reads bytes of the file; fewer at its end, none if they can't be read."""
        try:
            return os.pread(self._descriptor, min(size_bytes, _LONGEST_READ), offset)
        except (OSError, OverflowError, ValueError):
            return b""

    def ask_once(
        self,
        otherwise: T,
        question: Callable[Concatenate[Any, P], T],
        *given: P.args,
        **named: P.kwargs,
    ) -> T:
        """Returns the answer to a question, which is asked only once; on failure ``otherwise``."""
        key = question.__name__, repr(given)
        if key not in self._results:
            try:
                self._results[key] = self.ask(question, *given, **named)
            except FileReadError as error:
                self._note_trouble(error)
                self._results[key] = otherwise
        result: T = self._results[key]
        return result

    def _note_trouble(self, error: FileReadError) -> None:
        why = printable(str(error))
        if why not in self.troubles:
            self.troubles.append(why)
            if self.failure is None:  # otherwise already reported
                self._worker.say_missing(self, why)

    def look_up(self, names: Iterable[str], tails: Iterable[str] = ()) -> None:
        """Looks up, at once, functions and name endings that are needed one by one later."""
        unknown = [name for name in names if name not in self._functions]
        new_tails = [tail for tail in tails if tail not in self._tails]
        if not unknown and not new_tails:
            return
        try:
            places, ending, linkage = self.ask(CodeFileReader.functions, unknown, new_tails)
        except FileReadError as error:
            self._note_trouble(error)
            places, ending, linkage = {}, {tail: [] for tail in new_tails}, {}
        self._functions.update((name, dict(places.get(name, ()))) for name in unknown)
        self._tails.update((tail, set(ending[tail])) for tail in new_tails)
        for name in linkage.keys() & unknown:
            (self.exports if linkage[name] else self.imports).add(name)

    def find_functions(self, names: Collection[str]) -> dict[str, dict[int, int]]:
        """Returns defined functions by name: {address: bytes}. Callers must not change it."""
        self.look_up(names)
        return {name: self._functions[name] for name in names if self._functions[name]}

    def names_ending(self, tail: str) -> set[str]:
        self.look_up((), [tail])
        return self._tails[tail]

    names_like = asked_once(CodeFileReader.names_like, ())
    find_object = asked_once(CodeFileReader.find_object, None)
    function_at = asked_once(CodeFileReader.function_at, None)
    exits = asked_once(CodeFileReader.exits, FunctionExits([], "its code can't be read"))
    return_slot = asked_once(CodeFileReader.return_slot, 0)
    always_calls = asked_once(CodeFileReader.always_calls, otherwise=False)
    thread_cache_drain = asked_once(CodeFileReader.thread_cache_drain, None)
    makes_filters = asked_once(CodeFileReader.makes_filters, otherwise=False)
    offsets = asked_once(CodeFileReader.offsets, None)
    usdt_providers = asked_once(CodeFileReader.usdt_providers, ())

    def parts(self, name: str) -> list[range]:
        """Returns the parts into which a compiler split a function; none without a symbol."""
        return [range(*part) for part in self.ask_once((), CodeFileReader.parts, name)]

    def usdt(self, provider: str) -> Sequence[UsdtPlace]:
        found = self.ask_once((), CodeFileReader.usdt, provider)
        self.usdt_offsets.update(place.offset for place in found)
        return found


class WorkerFile(FileHandle):
    """A file whose symbols and lines a worker reads. Every question may raise FileReadError."""

    def __init__(self, worker: FileWorker, descriptor: int, path: str) -> None:
        super().__init__(worker, descriptor, path)
        self._debug: DebugFile | None = None
        self._decoded: set[bool] = set()

    describe = asked(SymbolFileReader.describe)
    count = asked(SymbolFileReader.count)
    symbols = asked(SymbolFileReader.symbols)
    variables = asked(SymbolFileReader.variables)
    data_layout = asked(SymbolFileReader.data_layout)

    def introduction(self) -> list[tuple[Callable[..., Any], list[Any]]]:
        told = super().introduction()
        if self._debug is not None:
            descriptor = Descriptor(self._debug.descriptor())
            told.append((SymbolFileReader.add_debug_file, [descriptor, self._debug.by_name]))
        return told + [(SymbolFileReader.decode, [of_debug]) for of_debug in self._decoded]

    def take_debug_file(self, found: DebugFile) -> tuple[bool, bool]:
        """Returns (whether a file is the debug file, and must stay open; whether it has lines)."""
        descriptor = Descriptor(found.descriptor())
        fits, has_lines = self.ask(SymbolFileReader.add_debug_file, descriptor, found.by_name)
        if fits:
            self._debug = found
        return fits, has_lines

    def decoder(self, *, of_debug: bool) -> FileDecoder | str:
        """Returns a decoder of the lines in the file or its debug file; or why there is none."""
        reason = self.ask(SymbolFileReader.decode, of_debug)
        if reason is not None:
            return reason
        self._decoded.add(of_debug)
        return FileDecoder(self, of_debug=of_debug)


class FileDecoder:
    """Decodes a file's lines and inlined functions, in a worker: a ``LineDecoder``."""

    def __init__(self, file: WorkerFile, *, of_debug: bool) -> None:
        self.split_paths: list[str | None] = []
        self.reason: str | None = None
        self._file = file
        self._of_debug = of_debug

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns one chain of source frames per address. Raises FileReadError."""
        found, self.split_paths, self.reason = self._file.ask(
            SymbolFileReader.chains, addresses, self._of_debug
        )
        return found

    def variables(self, addresses: Sequence[int]) -> list[SourcePlace]:
        """Returns where the variables at these addresses are declared. Raises FileReadError."""
        return self._file.ask(SymbolFileReader.variable_places, addresses, self._of_debug)
