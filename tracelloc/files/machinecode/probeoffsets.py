"""Probe offsets in a function: at an instruction of low cost, and at its exits.

The kernel emulates a few instructions under a uprobe and single-steps every other one
out of line, which on some machines is thirty times as slow (arch/x86/kernel/uprobes.c:
``branch_setup_xol_ops``, ``push_setup_xol_ops``). A probe may sit past the entry if every
call of the function passes it exactly once, and if the argument registers and the stack
pointer are still as at entry. The same rules apply to arming a return probe.

Functions that may throw get no return probe (an exception could not pass it) but a probe on
each exit: their ret instructions, and those of the code that they jump to. Code is followed
from the entry along every branch; calls are assumed to return. Jumps out of the function, to
a split-off part or to another function, are followed as well, through the procedure linkage
table if it leads back into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import capstone
from capstone import x86_const as x86

from tracelloc.errors import UnsupportedError
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.plt import plt_functions

_REGISTERS: Final = {
    "rdi": (x86.X86_REG_RDI, x86.X86_REG_EDI, x86.X86_REG_DI, x86.X86_REG_DIL),
    "rsi": (x86.X86_REG_RSI, x86.X86_REG_ESI, x86.X86_REG_SI, x86.X86_REG_SIL),
    "rdx": (x86.X86_REG_RDX, x86.X86_REG_EDX, x86.X86_REG_DX, x86.X86_REG_DL, x86.X86_REG_DH),
    "rcx": (x86.X86_REG_RCX, x86.X86_REG_ECX, x86.X86_REG_CX, x86.X86_REG_CL, x86.X86_REG_CH),
    "r8": (x86.X86_REG_R8, x86.X86_REG_R8D, x86.X86_REG_R8W, x86.X86_REG_R8B),
    "r9": (x86.X86_REG_R9, x86.X86_REG_R9D, x86.X86_REG_R9W, x86.X86_REG_R9B),
    "rsp": (x86.X86_REG_RSP, x86.X86_REG_ESP, x86.X86_REG_SP, x86.X86_REG_SPL),
}
"""A register and its parts: writing any of them changes the argument."""

_FLOW: Final = (
    capstone.CS_GRP_JUMP,
    capstone.CS_GRP_CALL,
    capstone.CS_GRP_RET,
    capstone.CS_GRP_INT,
    capstone.CS_GRP_IRET,
    capstone.CS_GRP_BRANCH_RELATIVE,
)
_HARMFUL_NOP_BYTES: Final = 5
"""Linux 6.18 turns a probe on a nop of this length into a call that kills forked children, and
kernels after it may do so with longer ones."""
_ENTRY_BYTES: Final = 64
"""More than the bytes of nops that any compiler puts at a function's entry."""
_MOST_CODE: Final = 1 << 16
"""Most bytes of a function to analyze; a longer one is probed at its entry."""


@dataclass(frozen=True, slots=True)
class ProbeOffset:
    """Where to put a probe, relative to the function's entry."""

    offset: int
    """In bytes."""
    is_single_stepped: bool
    """The instruction there is single-stepped."""


def find_probe_offset(code: bytes, arguments: Iterable[str]) -> ProbeOffset:
    """The offset of an emulated instruction in an x86-64 function; the entry if there is none.

    ``code`` is the whole function, ``arguments`` the registers that must be intact, of
    those that hold arguments.
    """
    if len(code) > _MOST_CODE:
        return at_entry(code)
    kept = {part for name in (*arguments, "rsp") for part in _REGISTERS[name]}
    for instruction in instructions(code):
        offset = instruction.address
        if is_emulated(bytes(instruction.bytes)):
            if offset and _is_branched_to(code, offset):
                break
            return ProbeOffset(offset, False)
        if any(instruction.group(group) for group in _FLOW):
            break
        if kept.intersection(instruction.regs_access()[1]):
            break
    return at_entry(code)


def at_entry(code: bytes) -> ProbeOffset:
    """The entry, or the next instruction if a probe on the entry would do harm."""
    offset = 0
    for instruction in instructions(code[:_ENTRY_BYTES]):
        if instruction.id != x86.X86_INS_NOP or instruction.size < _HARMFUL_NOP_BYTES:
            break
        offset += instruction.size
    return ProbeOffset(offset, not is_emulated(code[offset:]))


def nop_at(code: bytes) -> tuple[int, bool]:
    """(size in bytes of the nop at the start of the code, or 0; whether a probe there does harm)"""
    for instruction in instructions(code):
        if instruction.id == x86.X86_INS_NOP:
            return instruction.size, instruction.size >= _HARMFUL_NOP_BYTES
        break
    return 0, False


def is_emulated(code: bytes) -> bool:
    """Whether the kernel emulates the instruction at the start of ``code`` (x86-64).

    push of a 64-bit register, short and near jumps, near calls, one-byte nop: on every
    kernel that has ring buffers. Longer nops are emulated by new kernels only, and those
    of five bytes never carry a probe: it breaks forked children of Linux 6.18.
    """
    if not code:
        return False
    first, second = code[0], code[1] if len(code) > 1 else 0
    if first in (0xE8, 0xE9, 0xEB, 0x90) or 0x70 <= first <= 0x7F or 0x50 <= first <= 0x57:
        return True
    return (first == 0x0F and 0x80 <= second <= 0x8F) or (first == 0x41 and 0x50 <= second <= 0x57)


def _is_branched_to(code: bytes, end: int) -> bool:
    """Whether a branch of the function leads to one of its bytes 1 … ``end``.

    A probe there would be hit again without a new call. Code that cannot be decoded to its
    end counts as branched to.
    """
    position = 0
    for instruction in instructions(code):
        position = instruction.address + instruction.size
        if not instruction.group(capstone.CS_GRP_JUMP):
            continue
        for operand in instruction.operands:
            if operand.type == x86.X86_OP_IMM and 0 < operand.imm <= end:
                return True
    return position < len(code)


def instructions(code: bytes, address: int = 0) -> Iterator[Any]:
    """The decoded instructions of code at this address."""
    return iter(_decoder().disasm(code, address))


@cache
def _decoder() -> Any:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    return decoder


_MOST_INSTRUCTIONS: Final = 8192
_MOST_IN_FILE: Final = 1 << 18
"""Most instructions to follow in one file: some seconds. jemalloc needs a tenth of them."""
_READ_BYTES: Final = 512
"""Bytes of code decoded at once."""
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
"""Functions that do not return: the code after a call of them is not part of the path."""


@dataclass(slots=True)
class CodePaths:
    """The exits found on the paths through a function."""

    stops: Stops
    """Functions at whose call a path ends."""
    rets: set[int] = field(default_factory=set)
    """Addresses of ret instructions."""
    stopped: bool = False
    """Whether a path ended at one of ``stops``."""
    trouble: str = ""
    """Reasons why there may be more rets; empty if these are all."""


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
        self._left = _MOST_IN_FILE

    def exits(self, entry: int) -> CodePaths:
        """All ret instructions that may end a function, or the reasons why some are unknown."""
        walk = self._walk(entry, Stops())
        if not walk.rets and not walk.trouble:
            walk.trouble = "it has no ret instruction"
        return walk

    def leaves_it_to(self, entry: int, others: Stops) -> bool:
        """Whether a function never returns without having called one of these."""
        walk = self._walk(entry, others)
        return walk.stopped and not walk.rets and not walk.trouble

    def _walk(self, entry: int, stops: Stops) -> CodePaths:
        walk = CodePaths(stops)
        open_paths, seen = [entry], set[int]()
        while open_paths and not walk.trouble:
            self._follow(open_paths.pop(), walk, open_paths, seen)
        return walk

    def _follow(self, address: int, walk: CodePaths, open_paths: list[int], seen: set[int]) -> None:
        """Follows code straight from an address until the path ends or joins a known one."""
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
                self._left -= 1
                if len(seen) > _MOST_INSTRUCTIONS or self._left < 0:
                    walk.trouble = "it is too long to follow"
                if walk.trouble or self._ends_path(instruction, walk, open_paths):
                    return
                address = at + instruction.size
                start = -1
                continue
            if not decoded:
                walk.trouble = "its code can't be decoded"
                return

    def _ends_path(self, instruction: Any, walk: CodePaths, open_paths: list[int]) -> bool:
        """Records an instruction's effect on the path. Returns whether the path ends."""
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
            walk.trouble = f"it continues by {instruction.mnemonic} {instruction.op_str}"
            return True
        if not self._is_stop(target, walk):
            behind = self._behind_stub(target, walk)
            if behind is not None:
                open_paths.append(behind)
        return bool(instruction.id == x86.X86_INS_JMP)

    def _is_stop(self, target: int | None, walk: CodePaths) -> bool:
        """Whether a call or a jump to this address ends the path."""
        if target is None:
            return False
        name = self._stub_names().get(target, "")
        if target in walk.stops.addresses or name in walk.stops.names:
            walk.stopped = True
            return True
        return name in _NEVER_BACK

    def _behind_stub(self, target: int, walk: CodePaths) -> int | None:
        """The final target of a jump in this file; None, with a trouble, if it leaves the file."""
        name = self._stub_names().get(target)
        if name is None:
            return target
        own = self._elf.find_functions([name]).get(name)
        if own:
            return next(iter(own))
        walk.trouble = f"it continues in {name} of another file"
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
    """The target of a direct jump or call."""
    (operand,) = instruction.operands[:1] or (None,)
    if operand is None or operand.type != x86.X86_OP_IMM:
        return None
    return int(operand.imm)
