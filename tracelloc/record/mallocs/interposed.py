"""Finds out which allocators' calls pass through the preloaded library (``probes/preloaded``).

The preloaded library defines functions of malloc libraries, and the loader resolves a program's
symbols to it first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tracelloc.model.codefiles import base_name, is_c_library, is_runtime
from tracelloc.record.mallocs.discovery import Allocator, Module, functions_of
from tracelloc.record.mallocs.families import LIBC, OPERATORS, jemalloc

_PLAIN: Final = {*LIBC.functions, *OPERATORS.functions, *jemalloc("").functions}


def is_standard_malloc(allocator: Allocator) -> bool:
    """Returns whether an allocator is the C library's malloc, or the C++ operators that call it."""
    if allocator.family is OPERATORS:
        return is_runtime(allocator.module.path)
    return allocator.family is LIBC and is_c_library(allocator.module.path)


def may_be_interposed(allocator: Allocator, executable: str | None) -> bool:
    """Returns whether malloc's symbols may lead here, not to the program's own file."""
    module = allocator.module
    is_library = module.path != executable and "malloc" in module.elf.exports
    return is_library and not allocator.family.by_user


def direct_caller(
    defined: Collection[str], modules: Iterable[Module], allocators: Iterable[Allocator]
) -> str | None:
    """Describes a file that calls allocator functions which the library does not interpose.

    ``defined``: functions that the library defines; ``allocators``: all that were found.
    """
    allocators = list(allocators)
    own = {allocator.module.open_path for allocator in allocators}
    names = {name for function in functions_of(allocators) for name in function.names}
    names.update(unseen.name for allocator in allocators for unseen in allocator.unseen)
    names.difference_update(defined)
    for module in modules:
        called = module.elf.imports & names
        if called and not is_runtime(module.path) and module.open_path not in own:
            return f"{base_name(module.path)} calls {min(called)} directly"
    return None


def asked_operators(allocators: Iterable[Allocator]) -> Collection[str]:
    """Returns names of C++'s operators if they call malloc and free, as the C++ library's do."""
    own = functions_of(a for a in allocators if not is_runtime(a.module.path))
    names = {name for function in own for name in function.names}
    return () if names & OPERATORS.functions.keys() else OPERATORS.functions


def defined_by(library: Module) -> Collection[str]:
    """Returns the names of the allocator functions that a (preloaded) library defines."""
    return library.elf.find_functions(_PLAIN)


def filter_maker(library: Module | None, modules: Iterable[Module]) -> str | None:
    """Describes a file that may install seccomp filters without the library noticing."""
    for module in modules:
        if module is not library and not is_runtime(module.path) and module.elf.makes_filters():
            return f"{base_name(module.path)} may filter system calls (seccomp) by itself"
    return None
