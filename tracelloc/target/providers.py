"""Whose malloc a process uses: which implementation each file has, and which one is live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from tracelloc.elf import ElfFile
from tracelloc.target.families import LIBC, MAPPINGS, OPERATORS, Family
from tracelloc.target.procfs import base_name, is_c_library

if TYPE_CHECKING:
    from tracelloc.target.found import FoundAllocator


class Provider(Enum):
    """An implementation of malloc."""

    GLIBC = "glibc"
    MUSL = "musl"
    JEMALLOC = "jemalloc"
    TCMALLOC = "tcmalloc"
    MIMALLOC = "mimalloc"
    OTHER = "another allocator"


_BY_FAMILY: Final = {
    "jemalloc": Provider.JEMALLOC,
    "tcmalloc": Provider.TCMALLOC,
    "mimalloc": Provider.MIMALLOC,
}
_BY_FUNCTION: Final = {
    "mallocx": Provider.JEMALLOC,
    "tc_malloc": Provider.TCMALLOC,
    "mi_malloc": Provider.MIMALLOC,
    "__libc_malloc_impl": Provider.MUSL,
    "malloc_info": Provider.GLIBC,
}
"""What only one of them defines; those that may define another one's names come first."""


def provider_of(family: Family, path: str, elf: ElfFile) -> Provider | None:
    """Who implements a family in a file; None: the file has no blocks of its own.

    C++'s operators and mappings are nobody's: they ask malloc, or the kernel.
    """
    if family.by_user:
        return Provider.OTHER
    if family.name in _BY_FAMILY:
        return _BY_FAMILY[family.name]
    defined = elf.find_functions(_BY_FUNCTION)
    for name, provider in _BY_FUNCTION.items():
        if name in defined and family is not MAPPINGS:
            return provider
    if family in (MAPPINGS, OPERATORS):
        return None
    return Provider.MUSL if _is_musl(path) else Provider.OTHER


def _is_musl(path: str) -> bool:
    """By the names that its shared library has (musl's ldso); the exported ones tell nothing."""
    return "musl" in path or base_name(path) == "libc.so"


@dataclass(frozen=True, slots=True)
class MainAllocator:
    """Whose malloc the program calls."""

    provider: Provider
    file: str
    others: tuple[str, ...]
    """Allocators beside it, whose blocks can't be told from its own; in words."""


def main_allocator(found: Iterable[FoundAllocator]) -> MainAllocator | None:
    """The first file that defines malloc, the C library last: as symbols are resolved.

    The C library's own malloc behind another one is not counted among the others: nothing
    calls it any more. None if there is no allocator.
    """
    own = [(a, a.provider) for a in found if a.provider is not None]
    if not own:
        return None
    main, provider = min(own, key=_precedence)
    others = {
        f"{a.family} in {base_name(a.file)}": None
        for a, whose in own
        if (whose, a.file) != (provider, main.file)
        and not (a.family == LIBC.name and is_c_library(a.file))
    }
    return MainAllocator(provider, main.file, tuple(others))


def _precedence(pair: tuple[FoundAllocator, Provider]) -> tuple[bool, bool, bool]:
    allocator, provider = pair
    # Dynamic linkers have a malloc of their own for the time before the C library's.
    in_c_library = is_c_library(allocator.file)
    is_loaders = in_c_library and provider is Provider.OTHER
    return allocator.family != LIBC.name, in_c_library, is_loaders
