"""One file of code that the target has mapped, as read by a worker.

Answers are trusted no more than the file itself. Data that can't be read is treated as
missing: the worker's failure has been reported by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tracelloc.architecture import native
from tracelloc.files.elf import NotElfError, Segment
from tracelloc.files.elf.file import DynamicNames
from tracelloc.files.elf.segments import SegmentedFile
from tracelloc.record.worker.client import CODE_WORKER, FileReadError, FileWorker
from tracelloc.record.worker.handle import FileHandle, text, text_or_none, whole_number
from tracelloc.text import printable

T = TypeVar("T")

_LONGEST_READ: Final = 1 << 20
"""Most bytes per read."""
_FARTHEST: Final = 1 << 15
"""Most bytes by which an argument may precede a register's target."""
_NOT_ELF: Final = "NotElfError: "


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """Basic data of a file, requested at once."""

    segments: list[Segment]
    has_frames: bool
    """Whether its call-frame information is supported."""
    build_id: str | None
    is_go: bool
    has_tables: bool
    """Whether it has symbol tables."""
    unwind_sections: list[str]
    """The names of its unwind tables."""
    dynamic_names: DynamicNames
    troubles: list[str]


@dataclass(frozen=True, slots=True)
class FunctionExits:
    """The exits of a function."""

    rets: list[int]
    trouble: str
    """Why there may be more of them; empty if there are not."""


@dataclass(frozen=True, slots=True)
class UsdtPlace:
    """A USDT probe in a file. Offsets are in the file, in bytes."""

    name: str
    offset: int
    semaphore: int
    """Offset of the counter of attached probes; 0 if there is none."""
    arguments: tuple[tuple[int, bool, int], ...] | None
    """(number of a register, whether the argument is in memory, offset from the register's target);
    None if it is elsewhere."""
    nop_bytes: int
    """Length of the nop there; 0 if there is none."""
    is_harmful: bool
    """Whether a probe on that nop is harmful."""


Offsets = tuple[int, bool]
"""Offset of a probe from the function's entry, and whether the instruction is single-stepped."""


class TargetFile(FileHandle, SegmentedFile):
    """A file with its own descriptor. Addresses are the file's own. Thread safe."""

    def __init__(self, descriptor: int, path: str, worker: FileWorker = CODE_WORKER) -> None:
        """Takes ownership of the descriptor. Raises NotElfError, FileReadError after closing it."""
        super().__init__(worker, descriptor, path)
        self._functions: dict[str, dict[int, int]] = {}
        self._tails: dict[str, set[str]] = {}
        self.exports: Final[set[str]] = set()
        """Functions that the file exports, among those looked up."""
        self.imports: Final[set[str]] = set()
        """Functions that the file imports, among those looked up."""
        self._results: dict[Hashable, Any] = {}
        self.usdt_offsets: Final[set[int]] = set()
        """Offsets of the requested USDT probes: stacks may begin there."""
        try:
            self._facts = self._asked(_facts, "facts")
        except BaseException as error:
            self.close()
            if isinstance(error, FileReadError) and str(error).startswith(_NOT_ELF):
                raise NotElfError(str(error).removeprefix(_NOT_ELF)) from error
            raise
        self.segments = self._facts.segments
        self.has_frames: Final = self._facts.has_frames
        self.build_id: Final = self._facts.build_id
        self.is_go: Final = self._facts.is_go
        self.has_tables: Final = self._facts.has_tables
        self.unwind_sections: Final = self._facts.unwind_sections
        self.dynamic_names: Final = self._facts.dynamic_names
        self.troubles: Final = self._facts.troubles
        """What was not read, as too large or unreadable, to display."""

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
        """Returns the file's descriptor, which this object still owns."""
        return self._descriptor

    @property
    def open_path(self) -> str:
        """A path by which tracelloc, and the kernel for it, open this file while it is open."""
        return f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        """Closes the file, here and in the worker. May be called twice."""
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self.failure = "it is closed"

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Returns bytes of the file; fewer at its end, none if they can't be read."""
        try:
            return os.pread(self._descriptor, min(size_bytes, _LONGEST_READ), offset)
        except (OSError, OverflowError, ValueError):
            return b""

    def once(self, key: Hashable, work_out: Callable[[], T]) -> T:
        """Returns a result that depends on the file alone, cached by key."""
        if key not in self._results:
            self._results[key] = work_out()
        result: T = self._results[key]
        return result

    def _known(self, otherwise: T, decode: Callable[[Any], T], what: str, *more: Any) -> T:
        """Returns the answer to a question, which is asked once."""

        def ask() -> T:
            try:
                return self._asked(decode, what, *more)
            except FileReadError as error:
                self._note_trouble(error)
                return otherwise

        return self.once((what, *more), ask)

    def _note_trouble(self, error: FileReadError) -> None:
        why = printable(str(error))
        if why not in self.troubles:
            self.troubles.append(why)
            if self.failure is None:  # otherwise already reported
                self._worker.say_missing(self, why)

    def look_up(self, names: Iterable[str], tails: Iterable[str] = ()) -> None:
        """Looks up at once functions and name endings that are needed one by one later."""
        unknown = [name for name in names if name not in self._functions]
        new_tails = [tail for tail in tails if tail not in self._tails]
        if not unknown and not new_tails:
            return

        def decode(
            answer: Any,
        ) -> tuple[dict[str, dict[int, int]], dict[str, set[str]], dict[str, bool]]:
            places, ending, linkage = answer
            return (
                {
                    name: {whole_number(a): whole_number(s) for a, s in places.get(name, ())}
                    for name in unknown
                },
                {tail: {text(name) for name in ending[tail]} for tail in new_tails},
                {name: bool(linkage[name]) for name in unknown if name in linkage},
            )

        try:
            functions, found, linkage = self._asked(decode, "functions", unknown, new_tails)
        except FileReadError as error:
            self._note_trouble(error)
            functions = {name: {} for name in unknown}
            found = {tail: set() for tail in new_tails}
            linkage = {}
        self._functions.update(functions)
        self._tails.update(found)
        self.exports.update(name for name, is_defined in linkage.items() if is_defined)
        self.imports.update(name for name, is_defined in linkage.items() if not is_defined)

    def find_functions(self, names: Collection[str]) -> dict[str, dict[int, int]]:
        """Returns the defined functions with these names: address to size (usually one each).

        Each is looked up once. Callers must not change the result.
        """
        self.look_up(names)
        return {name: self._functions[name] for name in names if self._functions[name]}

    def names_ending(self, tail: str) -> set[str]:
        """Returns the names in the symbol tables that end with this."""
        self.look_up((), [tail])
        return self._tails[tail]

    def names_like(self, pattern: str) -> list[str]:
        """Returns the names in the symbol tables that equal the pattern, or match it as a glob."""
        return self._known([], lambda names: [text(name) for name in names], "names like", pattern)

    def find_object(self, name: str) -> int | None:
        """Returns the address of a variable that the file defines; None if unknown."""
        return self._known(
            None, lambda found: None if found is None else whole_number(found), "object", name
        )

    def function_at(self, address: int) -> str | None:
        """Returns the name of the function that contains an address, by the symbol tables."""
        return self._known(None, text_or_none, "function at", address)

    def offsets(
        self, functions: Sequence[tuple[int, int, tuple[str, ...] | None]]
    ) -> list[Offsets | None] | None:
        """Returns the offset of a probe on each function; None if unknown.

        ``functions`` are file offset, size, registers that must be intact. Without registers,
        the probe is on the entry. A function may have no instruction that can have a probe.
        """

        def decode(answer: Any) -> list[Offsets | None]:
            found = [
                None if place is None else (whole_number(place[0]), bool(place[1]))
                for place, _ in zip(answer, functions, strict=True)
            ]
            if any(
                place[0] >= max(size, 1)
                for place, (_, size, registers) in zip(found, functions, strict=True)
                if registers is not None and place is not None
            ):
                raise ValueError("a probe beyond its function")
            return found

        return self._known(None, decode, "offsets", tuple(functions))

    def exits(self, entry: int) -> FunctionExits:
        """Returns all ret instructions of a function, or why they are unknown."""

        def decode(answer: Any) -> FunctionExits:
            rets, trouble = answer
            return FunctionExits([whole_number(ret) for ret in rets], text(trouble))

        return self._known(FunctionExits([], "its code can't be read"), decode, "exits", entry)

    def return_slot(self, entry: int, others: Iterable[int]) -> int:
        """Returns where a function stores its return address: ``CodeReader.return_slot``."""
        return self._known(0, whole_number, "return slot", entry, tuple(sorted(others)))

    def leaves_it_to(self, entry: int, addresses: Iterable[int], names: Iterable[str]) -> bool:
        """Returns whether a function always calls one of these before it returns."""
        others = tuple(sorted(addresses)), tuple(sorted(names))
        return self._known(False, bool, "leaves it", entry, *others)

    def thread_cache_drain(self, frees: Iterable[int]) -> int | None:
        """Returns the address of the function with which glibc frees an ended thread's cache.

        ``frees`` are the addresses of free. None if there is none, or if it is unknown.
        """
        return self._known(
            None,
            lambda found: None if found is None else whole_number(found),
            "thread cache drain",
            *sorted(frees),
        )

    def makes_filters(self) -> bool:
        """Returns whether its code seems to install seccomp filters without the C library."""
        return self._known(False, bool, "makes filters")

    def usdt(self, provider: str) -> list[UsdtPlace]:
        """Returns the file's USDT probes of a provider."""
        none: list[UsdtPlace] = []
        found = self._known(none, lambda places: [_place(one) for one in places], "usdt", provider)
        self.usdt_offsets.update(place.offset for place in found)
        return found

    def parts(self, name: str) -> list[range]:
        """Returns the parts into which a compiler split a function; none without a symbol."""
        return self._known(
            [],
            lambda parts: [range(whole_number(a), whole_number(b)) for a, b in parts],
            "parts",
            name,
        )


def _place(answer: Any) -> UsdtPlace:
    name, offset, semaphore, arguments, nop_bytes, is_harmful = answer
    found = None
    if arguments is not None:
        found = tuple(
            (
                whole_number(register) % len(native().usdt_registers),
                bool(in_memory),
                whole_number(distance + _FARTHEST) - _FARTHEST,
            )
            for register, in_memory, distance in arguments
        )
    places = whole_number(offset), whole_number(semaphore)
    return UsdtPlace(text(name), *places, found, whole_number(nop_bytes), bool(is_harmful))


def _facts(answer: Any) -> ElfFacts:
    segments, has_frames, build_id, is_go, has_tables, sections, needed, name, troubles = answer
    found = []
    for offset, size, address, executable in segments:
        whole_number(offset + size)
        whole_number(address + size)
        found.append(
            Segment(
                whole_number(offset), whole_number(size), whole_number(address), bool(executable)
            )
        )
    return ElfFacts(
        found,
        bool(has_frames),
        text_or_none(build_id),
        bool(is_go),
        bool(has_tables),
        [text(each) for each in sections],
        DynamicNames(tuple(text(each) for each in needed), text_or_none(name)),
        [text(each) for each in troubles],
    )
