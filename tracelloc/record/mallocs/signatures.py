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
    """What a function does: its code in probes' cookies, and the roles of its arguments."""

    ALLOC = abi.FunctionCode.ALLOC, "size"
    CALLOC = abi.FunctionCode.CALLOC, "count, size"
    POSIX_MEMALIGN = abi.FunctionCode.POSIX_MEMALIGN, "out, size"  # Returns an errno
    REALLOC = abi.FunctionCode.REALLOC, "block, size"  # If it fails, the old block stays live
    REALLOCF = abi.FunctionCode.REALLOCF, "block, size"  # If it fails, the old block is freed
    REALLOCARRAY = abi.FunctionCode.REALLOCARRAY, "block, count, size"
    # In place, and done if the result is at least `size`.
    RESIZE = abi.FunctionCode.RESIZE, "block, size"
    FREE = abi.FunctionCode.FREE, "block"  # Calls no other function that frees
    OUTER_FREE = abi.FunctionCode.OUTER_FREE, "block"  # May call another function that frees
    MAP = abi.FunctionCode.MAP, "size"  # Like mmap
    UNMAP = abi.FunctionCode.UNMAP, "start, size"
    REMAP = abi.FunctionCode.REMAP, "start, old size, size, flags"
    SBRK = abi.FunctionCode.SBRK, "increment"  # Returns the old end

    def __init__(self, code: abi.FunctionCode, roles: str) -> None:
        self.code = code
        self.roles = tuple(roles.split(", "))  # In the order of a signature's positions
        self.frees = self.name in ("FREE", "OUTER_FREE")
        self.returns = not self.frees  # Whether the result is read; frees are reported at entry
        # The BPF program for the function's entry and return
        self.program = FREE_PROGRAM if self.frees else ALLOCATOR_PROGRAM
        if self.name in ("MAP", "UNMAP", "REMAP", "SBRK"):
            self.program = MAPPING_PROGRAM


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
        cookie = self.kind.code | (abi.COOKIE_THROWS if self.throws else 0)
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
