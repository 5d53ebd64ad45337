"""Finds the allocator functions of a process, and describes those that it has found.

Families are data (``families.py``, and user-defined ones). Discovery searches every
ELF file that the process has mapped and yields functions by address, so that two names of one
function are probed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from tracelloc.dataclass import dataclass, replace
from tracelloc.errors import TargetError, privilege_hint
from tracelloc.model.codefiles import FileId, base_name, is_c_library
from tracelloc.model.process import FoundLibrary, MallocLibrary, Space, UnseenFunction
from tracelloc.record.mallocs.families import (
    ALLOC,
    FAMILIES,
    FREE,
    JEMALLOC_MARKERS,
    LIBC,
    MAPPINGS,
    OPERATORS,
    Family,
    FunctionKind,
    Provider,
    Signature,
    jemalloc,
)
from tracelloc.record.worker.codefilereader import UsdtPlace
from tracelloc.record.worker.targetfile import TargetFile
from tracelloc.text import printable

_KNOWN: Final = (*FAMILIES, MAPPINGS, OPERATORS)
# A function that only tracelloc's preloaded library has.
PRELOADED_MARKER: Final = "tracelloc_preload_ready"
# The function that dynamic linkers call before and after they change mappings (glibc
# elf/dl-debug.c; musl ldso/dynlink.c): the rendezvous for debuggers.
LOADER_HOOK: Final = "_dl_debug_state"
# All functions that are searched for in each file.
_OF_FAMILIES: Final = [name for f in _KNOWN for name in (*f.markers, *f.functions, *f.unseen)]
_NAMES: Final = tuple(dict.fromkeys([*_OF_FAMILIES, PRELOADED_MARKER, LOADER_HOOK]))
_MOST_PREFIXES: Final = 8  # Most jemalloc prefixes in one file; a program has one, rarely two


@dataclass(frozen=True, slots=True)
class Module:
    """A file that a process has mapped, opened by tracelloc."""

    file_id: FileId
    path: str  # Path to display
    open_path: str  # Path by which tracelloc can open the file
    elf: TargetFile

    @property
    def build_id(self) -> str | None:
        return self.elf.build_id


@dataclass(frozen=True, slots=True)
class AllocatorFunction:
    """An allocator function that discovery has found in a file."""

    module: Module
    names: tuple[str, ...]  # All names of the function, the plainest first
    signature: Signature
    address: int  # Address in the file's own address space
    offset: int  # Offset in the file, in bytes
    size: int  # Bytes of the function's code; 0 if the symbol has no size


@dataclass(frozen=True, slots=True)
class Allocator:
    """One allocator family in one file."""

    family: Family
    module: Module
    functions: tuple[AllocatorFunction, ...]
    unseen: tuple[UnseenFunction, ...] = ()  # Functions that can't be traced


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """User-defined allocator functions with one signature."""

    pattern: str  # Name of the functions, or a glob
    signature: Signature


@dataclass(frozen=True, slots=True)
class CustomAllocator:
    """A user-defined allocator."""

    name: str
    module: str  # A glob on the base name of files, or on their path if it has a slash
    functions: tuple[CustomFunction, ...]
    space: Space = Space.HOST  # Where the blocks are

    def family_in(self, path: str, elf: TargetFile) -> Family | None:
        """Returns the allocator's functions in this file; None if there are none."""
        if not fnmatchcase(path if "/" in self.module else base_name(path), self.module):
            return None
        found: dict[str, Signature] = {}
        for function in self.functions:
            for name in elf.names_like(function.pattern):
                found.setdefault(name, function.signature)
        names = tuple(found)
        return Family(self.name, found, names, by_user=True, space=self.space) if found else None


@dataclass(frozen=True, slots=True)
class MallocChoice:
    """The user's choice of allocators to trace."""

    # Traces only files with this path, or with this in their base name, or families of this name
    # (`--malloc`); None for all.
    only: str | None = None
    # User-defined allocators, which take precedence over known families.
    custom: tuple[CustomAllocator, ...] = ()
    mappings: bool = False  # Whether mmap and related calls are traced too
    # Traces only allocations that programs report as one of these (`provider_in`).
    providers: tuple[Provider, ...] = ()


EVERYTHING: Final = MallocChoice()


def is_preloaded_library(module: Module) -> bool:
    """Returns whether a file is tracelloc's preloaded library, which forwards calls to malloc."""
    return bool(module.elf.find_functions([PRELOADED_MARKER]))


def discover(modules: Iterable[Module], selection: MallocChoice = EVERYTHING) -> list[Allocator]:
    """Finds the allocators in files; returns each function's address once."""
    found: list[Allocator] = []
    for module in modules:
        known = [*families_in(module.elf)]
        if is_preloaded_library(module):
            continue
        named = (pool.family_in(module.path, module.elf) for pool in selection.custom)
        every = [*(family for family in named if family is not None), *known]
        only = selection.only
        families = [f for f in every if only is None or _is_meant(module, f, only)]
        if selection.mappings and module.elf.find_functions(MAPPINGS.markers):
            families.append(MAPPINGS)
        found.extend(_allocators_of(module, families))
    return found


def functions_of(allocators: Iterable[Allocator]) -> list[AllocatorFunction]:
    """Returns all functions of some allocators."""
    return [function for allocator in allocators for function in allocator.functions]


def families_in(elf: TargetFile) -> Iterator[Family]:
    """Yields the families that a file implements; a function belongs to the first that names it."""
    markers = [marker for family in (*FAMILIES, OPERATORS) for marker in family.markers]
    elf.look_up(_NAMES, JEMALLOC_MARKERS)
    defined = elf.find_functions(markers)
    for family in FAMILIES:
        if any(marker in defined for marker in family.markers):
            yield family
    for prefix in _jemalloc_prefixes(elf):
        yield jemalloc(prefix)
    if any(marker in defined for marker in OPERATORS.markers):
        yield OPERATORS


def _jemalloc_prefixes(elf: TargetFile) -> list[str]:
    prefixes: set[str] = set()
    for marker in JEMALLOC_MARKERS:
        names = elf.find_functions(elf.names_ending(marker))
        prefixes.update(name.removesuffix(marker) for name in names)
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))[:_MOST_PREFIXES]


def _is_meant(module: Module, family: Family, only: str) -> bool:
    if "/" in only:
        return module.path == only
    return only == family.name or only in base_name(module.path)


def _allocators_of(module: Module, families: Sequence[Family]) -> Iterator[Allocator]:
    """Yields an allocator per family with functions; a function belongs to the first family."""
    owners: dict[int, Family] = {}
    names_at: dict[int, list[str]] = {}
    size_at: dict[int, int] = {}
    signature_at: dict[int, Signature] = {}
    for family in families:
        found = module.elf.find_functions(family.functions)
        for name in family.functions:  # in their order
            for address, size in found.get(name, {}).items():
                owners.setdefault(address, family)
                names_at.setdefault(address, []).append(name)
                size_at[address] = max(size, size_at.get(address, 0))
                signature = family.functions[name]
                known = signature_at.setdefault(address, signature)
                signature_at[address] = replace(known, throws=known.throws or signature.throws)
    for family in families:
        functions = []
        for address in [a for a, owner in owners.items() if owner is family]:
            offset = module.elf.offset_of(address)
            if offset is None:
                continue
            # Names are in the families' order, and a stable sort keeps it.
            names = sorted(names_at[address], key=lambda name: name.startswith("__"))
            kind, size = signature_at[address].kind, size_at[address]
            if kind is FunctionKind.FREE and not is_c_library(module.path):
                # The C library's calls no other free, but any other file's may.
                kind = FunctionKind.OUTER_FREE
            signature = replace(signature_at[address], kind=kind)
            functions.append(
                AllocatorFunction(module, tuple(names), signature, address, offset, size)
            )
        there = module.elf.find_functions(family.unseen)
        unseen = tuple(UnseenFunction(n, why) for n, why in family.unseen.items() if n in there)
        if functions:
            yield Allocator(family, module, tuple(functions), unseen)


_MOST_LISTED: Final = 8
_HARMFUL: Final = (
    "it is a nop of five bytes or more: a probe there would kill forked children on Linux 6.18"
)


def allocators_in(modules: Iterable[Module], selection: MallocChoice) -> list[Allocator]:
    """Returns the allocators to probe in files, or the USDT probes that report allocations."""
    if not selection.providers:
        return discover(modules, selection)
    found = [one for provider in selection.providers for one in _reporters(modules, provider)]
    return [one for one in found if any(f.signature is ALLOC for f in one.functions)]


def provider_in(modules: Sequence[Module], providers: Sequence[Provider]) -> Provider | None:
    """Returns the provider whose probes the files have, or None. TargetError if many."""
    found = [one for one in providers if allocators_in(modules, MallocChoice(providers=(one,)))]
    if len(found) > 1:
        names = " and ".join(one.name for one in found)
        raise TargetError(
            f"it reports allocations as {names}, which can't be added up",
            hint=f"name one of them: --source usdt:{found[0].name}",
        )
    return found[0] if found else None


def why_no_reports(modules: Sequence[Module], providers: Iterable[Provider]) -> str:
    """Explains why no file of a process reports allocations."""
    for provider in providers:
        for allocator in _reporters(modules, provider):
            for unseen in allocator.unseen:
                where = f"{provider.name}:{unseen.name} in {base_name(allocator.module.path)}"
                return f"{where} can't be probed: {unseen.reason}"
    found = sorted({name for module in modules for name in module.elf.usdt_providers()})
    listed = ", ".join(printable(name) for name in found[:_MOST_LISTED])
    wanted = " or ".join(f"{provider.name}:{provider.alloc}" for provider in providers)
    return f"it has no probes {wanted}{', only those of ' if found else ''}{listed}"


def _reporters(modules: Iterable[Module], provider: Provider) -> Iterator[Allocator]:
    for module in modules:
        places = module.elf.usdt(provider.name)
        functions = []
        for name, signature in ((provider.alloc, ALLOC), (provider.free, FREE)):
            for usable in usable_places(places, name, provider)[:1]:
                found = AllocatorFunction(module, (name,), signature, 0, usable.offset, 0)
                functions.append(found)
        unseen = {
            UnseenFunction(place.name, why): None
            for place in places
            if (why := _why_not(place, provider)) is not None
        }
        if functions or unseen:
            yield Allocator(provider, module, tuple(functions), tuple(unseen))


def usable_places(places: Iterable[UsdtPlace], name: str, provider: Provider) -> list[UsdtPlace]:
    """Returns the places where a provider's USDT probe of this name can be attached."""
    return [each for each in places if each.name == name and _why_not(each, provider) is None]


def _why_not(place: UsdtPlace, provider: Provider) -> str | None:
    if place.name not in (provider.alloc, provider.free):
        return "probes of this name are not known"
    if not place.nop_bytes:
        return "there is no nop where it should be"
    if place.is_harmful:
        return _HARMFUL
    known = dict(enumerate(place.arguments, 1))
    has_all = None not in map(known.get, provider.arguments_of(place.name).values())
    return None if has_all else "its arguments are in places that can't be read"


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
