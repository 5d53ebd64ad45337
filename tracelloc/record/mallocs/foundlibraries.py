"""Describes what is traced: allocators, their files, and functions that can't be traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracelloc.errors import privilege_hint
from tracelloc.model.codefiles import base_name, is_c_library
from tracelloc.model.process import FoundLibrary, MallocLibrary
from tracelloc.record.mallocs.discovery import Allocator, Module
from tracelloc.record.mallocs.families import FAMILIES, LIBC, MAPPINGS, OPERATORS, Family, Provider
from tracelloc.record.worker.targetfile import TargetFile

_BY_FAMILY: Final = {library.value: library for library in MallocLibrary}
# Functions that only one library defines; libraries that may define another's come first.
_BY_FUNCTION: Final = {
    "mallocx": MallocLibrary.JEMALLOC,
    **{
        marker: _BY_FAMILY[family.name]
        for family in FAMILIES
        if family is not LIBC
        for marker in family.markers
    },
    "__libc_malloc_impl": MallocLibrary.MUSL,
    "malloc_info": MallocLibrary.GLIBC,
}


def library_of(family: Family, path: str, elf: TargetFile) -> MallocLibrary | None:
    """Returns a file's malloc library; None if it only calls others (operators, mappings)."""
    if family.by_user:
        return MallocLibrary.OTHER
    if family.name in _BY_FAMILY:
        return _BY_FAMILY[family.name]
    if isinstance(family, Provider):
        return None
    defined = elf.find_functions(_BY_FUNCTION)
    for name, library in _BY_FUNCTION.items():
        if name in defined and family is not MAPPINGS:
            return library
    if family in (MAPPINGS, OPERATORS):
        return None
    # The names of musl's shared library (ldso); its exported symbols show nothing.
    is_musl = "musl" in path or base_name(path) == "libc.so"
    return MallocLibrary.MUSL if is_musl else MallocLibrary.OTHER


def describe_allocators(allocators: Iterable[Allocator]) -> tuple[FoundLibrary, ...]:
    """Describes allocators for display, without the data that only probing needs."""
    return tuple(
        FoundLibrary(
            family=allocator.family.name,
            file=allocator.module.path,
            functions=tuple(function.names[0] for function in allocator.functions),
            not_probed=allocator.unseen,
            library=library_of(allocator.family, allocator.module.path, allocator.module.elf),
            space=allocator.family.space,
        )
        for allocator in allocators
    )


def why_no_allocator(executable: str | None, modules: Sequence[Module]) -> tuple[str, str]:
    """Returns (why no file of a process defines malloc, a hint), for an error message."""
    program = next((m for m in modules if m.path == executable), None)
    if program is None:
        return "its executable can't be read", privilege_hint()
    if program.elf.is_go:
        hint = "Go has a heap profiler of its own, net/http/pprof; tracelloc sees what C code asks "
        return "it is a Go program, whose memory the Go runtime manages", f"{hint}for through cgo"
    if len(modules) > 1 and any(is_c_library(m.path) for m in modules):
        return "none of its files defines malloc", "--allocators FILE names other functions"
    if not program.elf.has_tables:
        hint = "run a build that was not stripped, or keep its symbols (strip --strip-debug)"
        return "it is a static program without symbols", hint
    hint = "--allocators FILE names the functions that it has instead"
    return "it is a static program that contains no malloc", hint
