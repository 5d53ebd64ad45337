"""The malloc libraries found in a process, and their functions that go unseen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from tracelloc.model.codefiles import base_name, is_c_library
from tracelloc.text import plural, printable

LIBC_FAMILY: Final = "malloc"
"""Name of the family of functions that the C library defines."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A function whose blocks go unseen, and why."""

    name: str
    reason: str


class MallocLibrary(Enum):
    """A malloc library."""

    GLIBC = "glibc"
    MUSL = "musl"
    JEMALLOC = "jemalloc"
    TCMALLOC = "tcmalloc"
    MIMALLOC = "mimalloc"
    OTHER = "another malloc library"


@dataclass(frozen=True, slots=True)
class MainLibrary:
    """The malloc library that the program calls."""

    library: MallocLibrary
    file: str
    others: tuple[str, ...]
    """Other allocators, whose blocks can't be told from this one's; in words."""


def main_library(found: Iterable[FoundLibrary]) -> MainLibrary | None:
    """The first file that defines malloc, the C library last, in the order of symbol resolution.

    If another library replaces the C library's own malloc, that one is not among the others:
    nothing calls it any more. None if there is no allocator.
    """
    own = [(a, a.library) for a in found if a.library is not None]
    if not own:
        return None
    main, library = min(own, key=_precedence)
    others = {
        f"{a.family} in {base_name(a.file)}": None
        for a, whose in own
        if (whose, a.file) != (library, main.file)
        and not (a.family == LIBC_FAMILY and is_c_library(a.file))
    }
    return MainLibrary(library, main.file, tuple(others))


def _precedence(pair: tuple[FoundLibrary, MallocLibrary]) -> tuple[bool, bool, bool]:
    allocator, library = pair
    # Dynamic linkers have their own malloc for the time before the C library's.
    in_c_library = is_c_library(allocator.file)
    is_loaders = in_c_library and library is MallocLibrary.OTHER
    return allocator.family != LIBC_FAMILY, in_c_library, is_loaders


_MOST_NAMES: Final = 3
"""Most function names in a line, for each reason."""


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """One allocator in one file."""

    family: str
    file: str
    functions: tuple[str, ...]
    """Plainest names of its functions."""
    not_probed: tuple[Unseen, ...]
    library: MallocLibrary | None = None
    """The library that implements it; None if it takes its blocks from others."""


def found_lines(found: Sequence[FoundLibrary]) -> Iterator[str]:
    """One line with the traced libraries, and one for each reason why functions are not probed."""
    traced = [
        f"{allocator.family} in {allocator.file} ({plural(len(allocator.functions), 'function')})"
        for allocator in found
        if allocator.functions
    ]
    if traced:
        yield f"malloc libraries: {printable(', '.join(traced))}"
    for line in unseen_lines(found):
        yield f"not probed: {line}"


def unseen_lines(found: Iterable[FoundLibrary]) -> Iterator[str]:
    """The functions that go unseen, one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for allocator in found:
        for unseen in allocator.not_probed:
            reasons.setdefault((allocator.file, unseen.reason), []).append(unseen.name)
    for (file, reason), names in reasons.items():
        more = len(names) - _MOST_NAMES
        shown = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        yield printable(f"{shown} in {base_name(file)}: {reason}")


def found_json(found: Iterable[FoundLibrary]) -> list[dict[str, Any]]:
    """The libraries for the JSON report."""
    return [
        {
            "name": allocator.family,
            "file": allocator.file,
            "functions": list(allocator.functions),
            "not_probed": [asdict(unseen) for unseen in allocator.not_probed],
        }
        for allocator in found
    ]
