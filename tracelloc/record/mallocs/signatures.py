"""What the arguments and the result of an allocator function mean.

A signature is a kind and the positions of the arguments that matter. The probes get both
as the cookie of each probe (``probes/event.h``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tracelloc.record import abi

REGISTERS: Final = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
"""Where x86-64 functions find their first arguments (System V ABI, 3.2.3)."""


SIZES: Final = 1 << 64 - abi.COOKIE_SIZE_SHIFT
"""Sizes below this can be those of all of a function's blocks."""
ALLOCATOR_PROGRAM: Final = "allocator_call"
MAPPING_PROGRAM: Final = "mapping_call"
FREE_PROGRAM: Final = "free_call"
"""BPF programs on functions: the first two for their ends, too."""


class FunctionKind(Enum):
    """What a function does; the value is what its probes' cookies say."""

    ALLOC = abi.FunctionCode.ALLOC
    """``f(size) -> block``"""
    CALLOC = abi.FunctionCode.CALLOC
    """``f(n, size) -> block``"""
    POSIX_MEMALIGN = abi.FunctionCode.POSIX_MEMALIGN
    """``f(out, size) -> errno``"""
    REALLOC = abi.FunctionCode.REALLOC
    """``f(block, size) -> block``; the old block lives on if it fails"""
    REALLOCF = abi.FunctionCode.REALLOCF
    """``f(block, size) -> block``; the old block is freed if it fails"""
    REALLOCARRAY = abi.FunctionCode.REALLOCARRAY
    """``f(block, n, size) -> block``"""
    RESIZE = abi.FunctionCode.RESIZE
    """``f(block, size) -> size``: in place, and done if the result is at least ``size``"""
    FREE = abi.FunctionCode.FREE
    """``f(block)``, which calls no other function that frees"""
    OUTER_FREE = abi.FunctionCode.OUTER_FREE
    """``f(block)``, which may call another one to do it"""

    MAP = abi.FunctionCode.MAP
    """``f(…, size) -> start``, as mmap"""
    UNMAP = abi.FunctionCode.UNMAP
    """``f(start, size)``, as munmap"""
    REMAP = abi.FunctionCode.REMAP
    """``f(start, old size, size, flags) -> start``, as mremap"""
    SBRK = abi.FunctionCode.SBRK
    """``f(increment) -> old end``"""

    @property
    def roles(self) -> tuple[str, ...]:
        """What the arguments are, in the order in which signatures give their positions."""
        return _ROLES[self]

    @property
    def returns(self) -> bool:
        """Whether the outcome is looked at; frees are reported when they begin."""
        return not self.frees

    @property
    def maps(self) -> bool:
        """Whether it is about mappings, not about blocks."""
        return self in (FunctionKind.MAP, FunctionKind.UNMAP, FunctionKind.REMAP, FunctionKind.SBRK)

    @property
    def program(self) -> str:
        """The BPF program for where it begins and ends."""
        if self.maps:
            return MAPPING_PROGRAM
        return FREE_PROGRAM if self.frees else ALLOCATOR_PROGRAM

    @property
    def frees(self) -> bool:
        """Whether it does nothing but free."""
        return self in (FunctionKind.FREE, FunctionKind.OUTER_FREE)


_ROLES: Final = {
    FunctionKind.ALLOC: ("size",),
    FunctionKind.CALLOC: ("count", "size"),
    FunctionKind.POSIX_MEMALIGN: ("out", "size"),
    FunctionKind.REALLOC: ("block", "size"),
    FunctionKind.REALLOCF: ("block", "size"),
    FunctionKind.REALLOCARRAY: ("block", "count", "size"),
    FunctionKind.RESIZE: ("block", "size"),
    FunctionKind.FREE: ("block",),
    FunctionKind.OUTER_FREE: ("block",),
    FunctionKind.MAP: ("size",),
    FunctionKind.UNMAP: ("start", "size"),
    FunctionKind.REMAP: ("start", "old size", "size", "flags"),
    FunctionKind.SBRK: ("increment",),
}


@dataclass(frozen=True, slots=True)
class Signature:
    """How to read one function's calls."""

    kind: FunctionKind
    positions: tuple[int, ...]
    """Positions of the arguments that ``FunctionKind.roles`` names, counted from 1, up to 6.
    0 of the size: it is ``size_bytes``."""
    throws: bool = False
    """Whether a C++ exception may leave it. No return probe then: an exception that meets one
    ends the program (``std::terminate``), for nothing can unwind through it."""
    size_bytes: int = 0
    """Size of all blocks of the function, below ``SIZES``."""

    @property
    def throwing(self) -> Signature:
        """The signature of a function that may be left by an exception."""
        return replace(self, throws=True)

    @property
    def behind_one(self) -> Signature:
        """The signature with one more argument before the others."""
        return replace(self, positions=tuple(position + 1 for position in self.positions))

    @property
    def registers(self) -> tuple[str, ...]:
        """The x86-64 registers that the program reads at the entry."""
        return tuple(REGISTERS[position - 1] for position in self.positions if position)

    @property
    def cookie(self) -> int:
        """What the program is told of it (``COOKIE_`` in ``probes/event.h``)."""
        cookie = self.kind.value | (abi.COOKIE_THROWS if self.throws else 0)
        for role, position in enumerate(self.positions):
            cookie |= position << abi.COOKIE_ARGUMENT_SHIFT + role * abi.COOKIE_ARGUMENT_BITS
        return cookie | self.size_bytes << abi.COOKIE_SIZE_SHIFT


ALLOC: Final = Signature(FunctionKind.ALLOC, (1,))
ALLOC_2: Final = ALLOC.behind_one
CALLOC: Final = Signature(FunctionKind.CALLOC, (1, 2))
POSIX_MEMALIGN: Final = Signature(FunctionKind.POSIX_MEMALIGN, (1, 3))
REALLOC: Final = Signature(FunctionKind.REALLOC, (1, 2))
REALLOCF: Final = Signature(FunctionKind.REALLOCF, (1, 2))
REALLOCARRAY: Final = Signature(FunctionKind.REALLOCARRAY, (1, 2, 3))
RESIZE: Final = Signature(FunctionKind.RESIZE, (1, 2))
FREE: Final = Signature(FunctionKind.FREE, (1,))
OUTER_FREE: Final = Signature(FunctionKind.OUTER_FREE, (1,))
