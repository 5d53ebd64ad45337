"""Where a function is left: its ret instructions, and those of what it jumps to.

Functions that may throw get no return probe (an exception could not pass it) but a probe
on each of these. Code is followed from the entry along every branch; calls are taken to
come back. Jumps out of the function, to a part that was split off or to another function,
are followed as well, through the procedure linkage table if it leads back into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, Final

import capstone
from capstone import x86_const as x86

from tracelloc.cfi.module import Cfi
from tracelloc.elf import ElfFile
from tracelloc.elf.plt import plt_functions
from tracelloc.errors import UnsupportedError
from tracelloc.placement.places import instructions

_MOST_INSTRUCTIONS: Final = 8192
_READ_BYTES: Final = 512
"""Code that is decoded at once."""
_NEVER_BACK: Final = (
    "abort",
    "exit",
    "__stack_chk_fail",
    "__assert_fail",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_typeid",
    "__cxa_call_unexpected",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "_ZSt17__throw_bad_allocv",
    "_ZSt28__throw_bad_array_new_lengthv",
)
"""Calls of these do not come back: what stands behind them is no part of the path."""


@dataclass(slots=True)
class Walk:
    """What was found on the paths through a function."""

    stops: Stops
    """Functions at whose call a path ends."""
    rets: set[int] = field(default_factory=set)
    """Addresses of ret instructions."""
    stopped: bool = False
    """Whether a path ended at one of ``stops``."""
    trouble: str = ""
    """Why there may be more rets than these; empty: there are not."""


@dataclass(frozen=True, slots=True)
class Stops:
    """Some functions, by address in the file and by name."""

    addresses: Set[int] = frozenset()
    names: Set[str] = frozenset()


class CodeReader:
    """Follows the code of one x86-64 file. Addresses are the file's own."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._stubs: dict[int, str] | None = None
        self._starts: Callable[[int], bool] | None = None

    def exits(self, entry: int) -> Walk:
        """All ret instructions by which a function may be left, or what keeps us from it."""
        walk = self._walk(entry, Stops())
        if not walk.rets and not walk.trouble:
            walk.trouble = "it has no ret instruction"
        return walk

    def leaves_it_to(self, entry: int, others: Stops) -> bool:
        """Whether a function never returns without having called one of these."""
        walk = self._walk(entry, others)
        return walk.stopped and not walk.rets and not walk.trouble

    def _walk(self, entry: int, stops: Stops) -> Walk:
        walk = Walk(stops)
        open_paths, seen = [entry], set[int]()
        while open_paths and not walk.trouble:
            self._follow(open_paths.pop(), walk, open_paths, seen)
        return walk

    def _follow(self, address: int, walk: Walk, open_paths: list[int], seen: set[int]) -> None:
        """Straight on from an address until the path ends or was taken before."""
        start = address
        while True:
            code = self._read(address)
            decoded = False
            for instruction in instructions(code, address):
                at = instruction.address
                if at in seen or (at != start and self._is_function(at)):
                    return
                if at + 15 > address + len(code) and len(code) == _READ_BYTES:
                    break  # it may be cut off
                seen.add(at)
                decoded = True
                if len(seen) > _MOST_INSTRUCTIONS:
                    walk.trouble = "it is too long to be followed"
                if walk.trouble or self._ends_path(instruction, walk, open_paths):
                    return
                address = at + instruction.size
                start = -1
                continue
            if not decoded:
                walk.trouble = "its code can't be decoded"
                return

    def _ends_path(self, instruction: Any, walk: Walk, open_paths: list[int]) -> bool:
        """Notes what an instruction does to the path; whether it ends there."""
        if instruction.group(capstone.CS_GRP_RET):
            walk.rets.add(instruction.address)
            return True
        if instruction.group(capstone.CS_GRP_CALL):
            return self._is_stop(_target(instruction), walk)
        if instruction.id in (x86.X86_INS_UD2, x86.X86_INS_HLT, x86.X86_INS_INT3):
            return True
        if not instruction.group(capstone.CS_GRP_JUMP):
            return False
        target = _target(instruction)
        if target is None:
            walk.trouble = f"it goes on by {instruction.mnemonic} {instruction.op_str}"
            return True
        if not self._is_stop(target, walk):
            behind = self._behind_stub(target, walk)
            if behind is not None:
                open_paths.append(behind)
        return bool(instruction.id == x86.X86_INS_JMP)

    def _is_stop(self, target: int | None, walk: Walk) -> bool:
        """Whether a call or a jump to this address ends the path."""
        if target is None:
            return False
        name = self._stub_names().get(target, "")
        if target in walk.stops.addresses or name in walk.stops.names:
            walk.stopped = True
            return True
        return name in _NEVER_BACK

    def _behind_stub(self, target: int, walk: Walk) -> int | None:
        """Where a jump ends up in this file; None if it leaves it, which is a trouble."""
        name = self._stub_names().get(target)
        if name is None:
            return target
        own = self._elf.find_functions([name]).get(name)
        if own:
            return next(iter(own))
        walk.trouble = f"it goes on in {name} of another file"
        return None

    def _stub_names(self) -> dict[int, str]:
        if self._stubs is None:
            found = plt_functions(self._elf)
            self._stubs = {address: name.removesuffix("@plt") for address, _, name in found}
        return self._stubs

    def _is_function(self, address: int) -> bool:
        """Whether call-frame information says that another function begins here."""
        if self._starts is None:
            try:
                self._starts = Cfi(self._elf).is_start
            except UnsupportedError:
                self._starts = _never
        return self._starts(address)

    def _read(self, address: int) -> bytes:
        offset = self._elf.offset_of(address)
        return b"" if offset is None else self._elf.read(offset, _READ_BYTES)


def _never(_address: int) -> bool:
    return False


def _target(instruction: Any) -> int | None:
    """Where a direct jump or call leads."""
    (operand,) = instruction.operands[:1] or (None,)
    if operand is None or operand.type != x86.X86_OP_IMM:
        return None
    return int(operand.imm)
