"""Signatures: the meaning of an allocator function's arguments and result.

A signature is a kind and the positions of the relevant arguments. The probes get both
in each probe's cookie (``probes/event.h``).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass, replace
from tracelloc.record import abi

# Upper limit (exclusive) of a fixed size of all blocks of a function.
SIZES: Final = 1 << 64 - abi.COOKIE_SIZE_SHIFT
ALLOCATOR_PROGRAM: Final = "allocator_call"
MAPPING_PROGRAM: Final = "mapping_call"
# BPF programs on functions; the first two also run at their returns.
FREE_PROGRAM: Final = "free_call"


class FunctionKind(Enum):
    """What a function does; the value is the code in its probes' cookies."""

    ALLOC = abi.FunctionCode.ALLOC  # `f(size) -> block`
    CALLOC = abi.FunctionCode.CALLOC  # `f(n, size) -> block`
    POSIX_MEMALIGN = abi.FunctionCode.POSIX_MEMALIGN  # `f(out, size) -> errno`
    # `f(block, size) -> block`; the old block stays live if it fails
    REALLOC = abi.FunctionCode.REALLOC
    # `f(block, size) -> block`; the old block is freed if it fails
    REALLOCF = abi.FunctionCode.REALLOCF
    REALLOCARRAY = abi.FunctionCode.REALLOCARRAY  # `f(block, n, size) -> block`
    # `f(block, size) -> size`: in place, and done if the result is at least `size`
    RESIZE = abi.FunctionCode.RESIZE
    FREE = abi.FunctionCode.FREE  # `f(block)`, which calls no other function that frees
    # `f(block)`, which may call another function that frees
    OUTER_FREE = abi.FunctionCode.OUTER_FREE

    MAP = abi.FunctionCode.MAP  # `f(…, size) -> start`, like mmap
    UNMAP = abi.FunctionCode.UNMAP  # `f(start, size)`, like munmap
    REMAP = abi.FunctionCode.REMAP  # `f(start, old size, size, flags) -> start`, like mremap
    SBRK = abi.FunctionCode.SBRK  # `f(increment) -> old end`

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the arguments, in the order of a signature's positions."""
        return _ROLES[self]

    @property
    def returns(self) -> bool:
        """Whether the function's result is read; frees are reported at the entry."""
        return not self.frees

    @property
    def maps(self) -> bool:
        """Whether the function changes mappings, not blocks."""
        return self in (FunctionKind.MAP, FunctionKind.UNMAP, FunctionKind.REMAP, FunctionKind.SBRK)

    @property
    def program(self) -> str:
        """The BPF program for the function's entry and return."""
        if self.maps:
            return MAPPING_PROGRAM
        return FREE_PROGRAM if self.frees else ALLOCATOR_PROGRAM

    @property
    def frees(self) -> bool:
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
    """How to read the calls of an allocator function: its kind, and which argument is what."""

    kind: FunctionKind
    # Positions of the arguments that `FunctionKind.roles` names, counted from 1, up to 6. A
    # position of 0 for the size means `size_bytes`.
    positions: tuple[int, ...]
    # Whether a C++ exception may leave the function. It then gets no return probe: an exception
    # can't unwind past a return probe and would end the program (`std::terminate`).
    throws: bool = False
    size_bytes: int = 0  # Size of all blocks of the function, below `SIZES`

    @property
    def throwing(self) -> Signature:
        """A copy of the signature, for a function that a C++ exception may leave."""
        return replace(self, throws=True)

    @property
    def behind_one(self) -> Signature:
        """The signature of a function with one more argument before the others."""
        return replace(self, positions=tuple(position + 1 for position in self.positions))

    @property
    def registers(self) -> tuple[str, ...]:
        """The registers of this machine that the program reads at the entry."""
        registers = native().argument_registers
        return tuple(registers[position - 1] for position in self.positions if position)

    @property
    def cookie(self) -> int:
        """The probes' cookie for the function (``COOKIE_`` in ``probes/event.h``)."""
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
