"""What a process must be like for the library to be injected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracelloc.architecture import native
from tracelloc.errors import TargetError
from tracelloc.model.codefiles import base_name
from tracelloc.record.mallocs.discovery import Allocator, Module, is_preloaded_library
from tracelloc.record.mallocs.interposed import (
    asked_operators,
    asks_malloc,
    direct_caller,
    filter_maker,
)
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace, is_injected
from tracelloc.record.sources.injected.functions import malloc_library
from tracelloc.record.sources.injected.mapping import library_file
from tracelloc.record.sources.preloaded.vouching import shared_filters

# Where glibc and musl keep a thread's id in `struct pthread`, in bytes from %fs.
_TID_OFFSETS: Final = 0x2D0, 0x30


def check(space: AddressSpace, allocators: Sequence[Allocator]) -> None:
    """Raises TargetError if the library can't be injected, or would miss calls."""
    modules = space.mapped_modules
    why = _why_not(space.process, modules) or _who_passes(space, allocators)
    if why:
        raise TargetError(why)


def _why_not(process: Process, modules: Sequence[Module]) -> str | None:  # noqa: PLR0911 - a reason each
    if not native().has_preloaded_library:
        return f"there is none for {native().title}"
    if process.inner_pid() != process.pid:
        return "it is in another PID namespace"
    if process.state() == "T":
        return "it is stopped (SIGSTOP); let it continue first"
    if process.tracer_id():
        return "another debugger traces it"
    if not process.can_be_read():
        return "this user may not read its memory"
    if process.has_seccomp_filter(shared_filters(process)):
        return "it filters its system calls (seccomp)"
    if process.has_shadow_stack():
        return "it has a shadow stack"
    if process.is_memory_limited():
        return "its address space is limited (RLIMIT_AS)"
    if process.locked_bytes():
        return "it locks memory (mlock)"
    if any(is_preloaded_library(each) and not is_injected(each.path) for each in modules):
        return "it has preloaded the library"
    return None


def _who_passes(space: AddressSpace, allocators: Sequence[Allocator]) -> str | None:
    used = malloc_library(space, allocators)
    for allocator in allocators:
        if not asks_malloc(allocator) and allocator.module is not used:
            return f"{base_name(allocator.module.path)} has allocators of its own"
    defined = {*library_file().symbols, *asked_operators(allocators)}
    modules = space.mapped_modules
    return direct_caller(defined, modules, allocators) or filter_maker(None, modules)


def find_tid_offset(process: Process, records: Iterable[tuple[int, int]]) -> int:
    """Returns where the C library keeps a thread's id. Raises TargetError.

    ``records``: thread and address of the C library's record of it, of all threads.
    """
    known = list(records)
    for offset in _TID_OFFSETS:
        if all(
            process.read_memory(address + offset, 4) == thread_id.to_bytes(4, "little")
            for thread_id, address in known
        ):
            return offset
    raise TargetError("the C library's record of a thread has not the thread's id")
