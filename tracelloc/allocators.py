"""Allocator functions: which names mean what, and where a process has them.

Families are data. Discovery looks through every ELF file the process has mapped and
yields functions by address, so that two names for one function are probed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tracelloc.elf import ElfFile
from tracelloc.procfs import FileId, base_name


class Kind(Enum):
    """What a function's arguments and result mean; the value names its entry program."""

    ALLOC = "alloc"
    """``f(size) -> block``"""
    CALLOC = "calloc"
    """``f(n, size) -> block``"""
    MEMALIGN = "memalign"
    """``f(alignment, size) -> block``"""
    POSIX_MEMALIGN = "posix_memalign"
    """``f(out, alignment, size) -> errno``"""
    REALLOC = "realloc"
    """``f(block, size) -> block``"""
    REALLOCARRAY = "reallocarray"
    """``f(block, n, size) -> block``"""
    FREE = "free"
    """``f(block)``"""

    @property
    def entry_program(self) -> str:
        """The BPF program for its entry."""
        return f"{self.value}_enter"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The x86-64 registers that its entry program reads (System V ABI, 3.2.3)."""
        return _ARGUMENTS[self]

    @property
    def return_program(self) -> str | None:
        """The BPF program for its return; frees are reported at entry only."""
        return None if self is Kind.FREE else "call_return"


_ARGUMENTS: Final = {
    Kind.ALLOC: ("rdi",),
    Kind.CALLOC: ("rdi", "rsi"),
    Kind.MEMALIGN: ("rsi",),
    Kind.POSIX_MEMALIGN: ("rdi", "rdx"),
    Kind.REALLOC: ("rdi", "rsi"),
    Kind.REALLOCARRAY: ("rdi", "rsi", "rdx"),
    Kind.FREE: ("rdi",),
}


@dataclass(frozen=True, slots=True)
class Family:
    """The functions of one allocator interface."""

    name: str
    functions: MappingType[str, Kind]
    required: tuple[str, ...]
    """A file that lacks one of these does not implement the family."""


LIBC: Final = Family(
    name="malloc",
    functions={
        "malloc": Kind.ALLOC,
        "calloc": Kind.CALLOC,
        "realloc": Kind.REALLOC,
        "reallocarray": Kind.REALLOCARRAY,
        "free": Kind.FREE,
        "cfree": Kind.FREE,
        "memalign": Kind.MEMALIGN,
        "aligned_alloc": Kind.MEMALIGN,
        "posix_memalign": Kind.POSIX_MEMALIGN,
        "valloc": Kind.ALLOC,
        "pvalloc": Kind.ALLOC,
        "__libc_malloc": Kind.ALLOC,
        "__libc_calloc": Kind.CALLOC,
        "__libc_realloc": Kind.REALLOC,
        "__libc_reallocarray": Kind.REALLOCARRAY,
        "__libc_free": Kind.FREE,
        "__libc_memalign": Kind.MEMALIGN,
        "__libc_valloc": Kind.ALLOC,
        "__libc_pvalloc": Kind.ALLOC,
    },
    required=("malloc", "free"),
)
"""malloc and its kin: malloc(3), posix_memalign(3)."""

FAMILIES: Final = (LIBC,)


@dataclass(frozen=True, slots=True)
class Module:
    """A file that the process has mapped."""

    file_id: FileId
    path: str
    """As shown to people."""
    open_path: str
    """As the kernel can open it now."""
    elf: ElfFile


@dataclass(frozen=True, slots=True)
class AllocatorFunction:
    """One function to probe."""

    module: Module
    names: tuple[str, ...]
    """All its names, the plainest first."""
    kind: Kind
    address: int
    """In the file's own address space."""
    offset: int
    """In the file, in bytes."""
    size: int
    """Of its code, in bytes; 0: the symbol doesn't say."""


def discover(modules: Iterable[Module], only: str | None = None) -> list[AllocatorFunction]:
    """The allocator functions in these files, each address once.

    ``only`` keeps modules whose path ends with it or contains it as a file name's part
    (the user's ``--allocator``), or families of that name.
    """
    found = []
    for module in modules:
        for family in FAMILIES:
            if only is not None and not _is_meant(module, family, only):
                continue
            found.extend(_functions_of(module, family))
    return found


def _is_meant(module: Module, family: Family, only: str) -> bool:
    if "/" in only:
        return module.path == only
    return only == family.name or only in base_name(module.path)


def _functions_of(module: Module, family: Family) -> list[AllocatorFunction]:
    addresses = module.elf.find_functions(family.functions)
    if not all(name in addresses for name in family.required):
        return []
    names_at: dict[int, list[str]] = {}
    size_at: dict[int, int] = {}
    for name in family.functions:
        for address, size in addresses.get(name, {}).items():
            names_at.setdefault(address, []).append(name)
            size_at[address] = max(size, size_at.get(address, 0))
    functions = []
    for address, names in names_at.items():
        offset = module.elf.offset_of(address)
        if offset is None:
            continue
        # They stand in the family's order, which this keeps.
        names.sort(key=lambda name: name.startswith("_"))
        functions.append(
            AllocatorFunction(
                module=module,
                names=tuple(names),
                kind=family.functions[names[0]],
                address=address,
                offset=offset,
                size=size_at[address],
            )
        )
    return functions
