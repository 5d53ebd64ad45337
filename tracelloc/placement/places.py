"""Where on a function its probe sits: the first instruction that costs little.

The kernel emulates a few instructions under a uprobe and single-steps every other one
out of line, which on some machines is thirty times as dear (arch/x86/kernel/uprobes.c:
``branch_setup_xol_ops``, ``push_setup_xol_ops``). A probe may sit past the entry as long
as every call of the function comes by, comes by once, and the argument registers and the
stack pointer are still as at entry; a return probe is armed by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import capstone
from capstone import x86_const as x86

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
"""More than any compiler leaves room for by nops at a function's entry."""
_MOST_CODE: Final = 1 << 16
"""Bytes of a function that are looked through; a longer one is probed at its entry."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to put a probe, relative to the function's entry."""

    offset: int
    """In bytes."""
    is_dear: bool
    """The instruction there is single-stepped."""
    reason: str = ""
    """Why it is dear."""


def find_place(code: bytes, arguments: Iterable[str]) -> Place:
    """The cheap place in an x86-64 function, or its entry if there is none.

    ``code`` is the whole function, ``arguments`` the registers that must be intact, of
    those that hold arguments.
    """
    if len(code) > _MOST_CODE:
        return at_entry(code, "the function is too long to look through")
    kept = {part for name in (*arguments, "rsp") for part in _REGISTERS[name]}
    for instruction in instructions(code):
        offset = instruction.address
        if is_emulated(bytes(instruction.bytes)):
            if offset and _is_branched_to(code, offset):
                return at_entry(code, "a branch leads back before the first cheap instruction")
            return Place(offset, False)
        if any(instruction.group(group) for group in _FLOW):
            return at_entry(code, f"{instruction.mnemonic} comes first")
        if kept.intersection(instruction.regs_access()[1]):
            return at_entry(code, f"{instruction.mnemonic} {instruction.op_str} comes first")
    return at_entry(code, "no cheap instruction was found")


def at_entry(code: bytes, reason: str) -> Place:
    """The entry, for want of better, or what follows it if a probe there would do harm."""
    offset = 0
    for instruction in instructions(code[:_ENTRY_BYTES]):
        if instruction.id != x86.X86_INS_NOP or instruction.size < _HARMFUL_NOP_BYTES:
            break
        offset += instruction.size
    return Place(offset, not is_emulated(code[offset:]), reason)


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

    The probe would then be met again without a new call. Code that can't be decoded to
    its end counts as if it did.
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
    """Decoded instructions of code that lies at this address."""
    return iter(_decoder().disasm(code, address))


@cache
def _decoder() -> Any:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    return decoder
