"""What is traced, in plain words: which allocators in which files, and what goes unseen.

Also whose malloc a process uses: which implementation each file has, and which one is live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from tracelloc.errors import privilege_hint
from tracelloc.target.allocators import Allocator, Module, Unseen
from tracelloc.target.families import LIBC, MAPPINGS, OPERATORS, OTEL, Family
from tracelloc.target.procfs import base_name, is_c_library
from tracelloc.text import plural, printable
from tracelloc.worker.targetfile import TargetFile


class MallocLibrary(Enum):
    """A malloc library."""

    GLIBC = "glibc"
    MUSL = "musl"
    JEMALLOC = "jemalloc"
    TCMALLOC = "tcmalloc"
    MIMALLOC = "mimalloc"
    OTHER = "another malloc library"


_BY_FAMILY: Final = {
    "jemalloc": MallocLibrary.JEMALLOC,
    "tcmalloc": MallocLibrary.TCMALLOC,
    "mimalloc": MallocLibrary.MIMALLOC,
}
_BY_FUNCTION: Final = {
    "mallocx": MallocLibrary.JEMALLOC,
    "tc_malloc": MallocLibrary.TCMALLOC,
    "mi_malloc": MallocLibrary.MIMALLOC,
    "__libc_malloc_impl": MallocLibrary.MUSL,
    "malloc_info": MallocLibrary.GLIBC,
}
"""What only one of them defines; those that may define another one's names come first."""


def library_of(family: Family, path: str, elf: TargetFile) -> MallocLibrary | None:
    """Who implements a family in a file; None: the file has no blocks of its own.

    C++'s operators and mappings are nobody's: they ask malloc, or the kernel.
    """
    if family.by_user:
        return MallocLibrary.OTHER
    if family.name in _BY_FAMILY:
        return _BY_FAMILY[family.name]
    if family is OTEL:
        return None
    defined = elf.find_functions(_BY_FUNCTION)
    for name, library in _BY_FUNCTION.items():
        if name in defined and family is not MAPPINGS:
            return library
    if family in (MAPPINGS, OPERATORS):
        return None
    return MallocLibrary.MUSL if _is_musl(path) else MallocLibrary.OTHER


def _is_musl(path: str) -> bool:
    """By the names that its shared library has (musl's ldso); the exported ones tell nothing."""
    return "musl" in path or base_name(path) == "libc.so"


@dataclass(frozen=True, slots=True)
class MainLibrary:
    """The malloc library that the program calls."""

    library: MallocLibrary
    file: str
    others: tuple[str, ...]
    """Allocators beside it, whose blocks can't be told from its own; in words."""


def main_library(found: Iterable[FoundLibrary]) -> MainLibrary | None:
    """The first file that defines malloc, the C library last: as symbols are resolved.

    The C library's own malloc behind another one is not counted among the others: nothing
    calls it any more. None if there is no allocator.
    """
    own = [(a, a.library) for a in found if a.library is not None]
    if not own:
        return None
    main, library = min(own, key=_precedence)
    others = {
        f"{a.family} in {base_name(a.file)}": None
        for a, whose in own
        if (whose, a.file) != (library, main.file)
        and not (a.family == LIBC.name and is_c_library(a.file))
    }
    return MainLibrary(library, main.file, tuple(others))


def _precedence(pair: tuple[FoundLibrary, MallocLibrary]) -> tuple[bool, bool, bool]:
    allocator, library = pair
    # Dynamic linkers have a malloc of their own for the time before the C library's.
    in_c_library = is_c_library(allocator.file)
    is_loaders = in_c_library and library is MallocLibrary.OTHER
    return allocator.family != LIBC.name, in_c_library, is_loaders


_MOST_NAMES: Final = 3
"""Names in a line that are not probed, for each reason."""


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """One allocator in one file."""

    family: str
    file: str
    functions: tuple[str, ...]
    """By their plainest names."""
    not_probed: tuple[Unseen, ...]
    library: MallocLibrary | None = None
    """Who implements it; None: it asks others for its blocks."""


def found_of(allocators: Iterable[Allocator]) -> tuple[FoundLibrary, ...]:
    """Describes allocators without what only probing needs."""
    return tuple(
        FoundLibrary(
            family=allocator.family.name,
            file=allocator.module.path,
            functions=tuple(function.names[0] for function in allocator.functions),
            not_probed=allocator.unseen,
            library=library_of(allocator.family, allocator.module.path, allocator.module.elf),
        )
        for allocator in allocators
    )


def found_lines(found: Sequence[FoundLibrary]) -> Iterator[str]:
    """One line that says what is traced, and one for each reason why something is not."""
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
    """The functions that go unseen, with one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for allocator in found:
        for unseen in allocator.not_probed:
            reasons.setdefault((allocator.file, unseen.reason), []).append(unseen.name)
    for (file, reason), names in reasons.items():
        more = len(names) - _MOST_NAMES
        shown = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        yield printable(f"{shown} in {base_name(file)}: {reason}")


def why_no_allocator(executable: str | None, modules: Sequence[Module]) -> tuple[str, str]:
    """(why none of a process's files defines malloc, what would help)"""
    program = next((m for m in modules if m.path == executable), None)
    if program is None:
        return "its executable can't be read", privilege_hint()
    if program.elf.is_go:
        hint = (
            "Go has a heap profiler of its own, net/http/pprof; tracelloc sees what C code asks "
            "for through cgo"
        )
        return "it is a Go program, whose memory the Go runtime manages", hint
    if len(modules) > 1 and any(is_c_library(m.path) for m in modules):
        return "none of its files defines malloc", "--allocators FILE names other functions"
    if not program.elf.has_tables:
        return (
            "it is a static program without symbols",
            "run a build that was not stripped, or keep its symbols (strip --strip-debug)",
        )
    return (
        "it is a static program that contains no malloc",
        "--allocators FILE names the functions that it has instead",
    )


def found_json(found: Iterable[FoundLibrary]) -> list[dict[str, Any]]:
    """For the JSON report."""
    return [
        {
            "name": allocator.family,
            "file": allocator.file,
            "functions": list(allocator.functions),
            "not_probed": [asdict(unseen) for unseen in allocator.not_probed],
        }
        for allocator in found
    ]
