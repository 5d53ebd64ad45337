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

from tracelloc.allocators import AllocatorFunction, Module
from tracelloc.procfs import base_name

_REGISTERS: Final = {
    "rdi": (x86.X86_REG_RDI, x86.X86_REG_EDI, x86.X86_REG_DI, x86.X86_REG_DIL),
    "rsi": (x86.X86_REG_RSI, x86.X86_REG_ESI, x86.X86_REG_SI, x86.X86_REG_SIL),
    "rdx": (x86.X86_REG_RDX, x86.X86_REG_EDX, x86.X86_REG_DX, x86.X86_REG_DL, x86.X86_REG_DH),
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
HARMFUL_NOP: Final = bytes.fromhex("0f1f440000")
"""nopl 0(%rax,%rax): Linux 6.18 turns a probe on it into a call that kills forked children."""
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


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """One probe: which program at which byte of which file."""

    open_path: str
    offset: int
    """In the file, in bytes."""
    program: str
    is_return: bool
    """The program runs when the function returns to its caller."""
    label: str
    """For messages: ``malloc in libc.so.6``."""
    is_dear: bool = False


def place(functions: Iterable[AllocatorFunction]) -> list[ProbePoint]:
    """The probes for these functions, in the order in which they are to be attached.

    Returns come first: a thread that is caught between the two attachments must not
    be seen to enter a call whose return would go unseen.
    """
    returns, entries = [], []
    for function in functions:
        label = f"{function.names[0]} in {base_name(function.module.path)}"
        where = _find_for(function)
        path, offset = function.module.open_path, function.offset + where.offset
        program = function.kind.return_program
        if program is not None:
            returns.append(ProbePoint(path, offset, program, True, label, where.is_dear))
        entry = function.kind.entry_program
        entries.append(ProbePoint(path, offset, entry, False, label, where.is_dear))
    return returns + entries


LOADER_HOOK: Final = "_dl_debug_state"
"""What dynamic linkers call when they are about to change, and have changed, what is mapped
(glibc elf/dl-debug.c; musl ldso/dynlink.c): the rendezvous for debuggers."""


def place_loader(modules: Iterable[Module]) -> list[ProbePoint]:
    """The probes that tell when libraries come and go."""
    points = []
    for module in modules:
        for address in module.elf.find_functions([LOADER_HOOK]).get(LOADER_HOOK, {}):
            offset = module.elf.offset_of(address)
            if offset is not None:
                offset += _at_entry(module.elf.read(offset, 16), "").offset
                label = f"{LOADER_HOOK} in {base_name(module.path)}"
                points.append(ProbePoint(module.open_path, offset, "loader_changes", False, label))
    return points


def _find_for(function: AllocatorFunction) -> Place:
    code = function.module.elf.read(function.offset, function.size or 16)
    if not function.size:
        return _at_entry(code, "its symbol does not say how long it is")
    return find_place(code, function.kind.arguments)


def find_place(code: bytes, arguments: Iterable[str]) -> Place:
    """The cheap place in an x86-64 function, or its entry if there is none.

    ``code`` is the whole function, ``arguments`` the registers that must be intact, of
    rdi, rsi, rdx.
    """
    if len(code) > _MOST_CODE:
        return _at_entry(code, "the function is too long to look through")
    kept = {part for name in (*arguments, "rsp") for part in _REGISTERS[name]}
    for instruction in _instructions(code):
        offset = instruction.address
        if is_emulated(bytes(instruction.bytes)):
            if offset and _is_branched_to(code, offset):
                return _at_entry(code, "a branch leads back before the first cheap instruction")
            return Place(offset, False)
        if any(instruction.group(group) for group in _FLOW):
            return _at_entry(code, f"{instruction.mnemonic} comes first")
        if kept.intersection(instruction.regs_access()[1]):
            return _at_entry(code, f"{instruction.mnemonic} {instruction.op_str} comes first")
    return _at_entry(code, "no cheap instruction was found")


def _at_entry(code: bytes, reason: str) -> Place:
    """The entry, for want of better, or what follows it if a probe there would do harm."""
    offset = 0
    while code.startswith(HARMFUL_NOP, offset):
        offset += len(HARMFUL_NOP)
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
    for instruction in _instructions(code):
        position = instruction.address + instruction.size
        if not instruction.group(capstone.CS_GRP_JUMP):
            continue
        for operand in instruction.operands:
            if operand.type == x86.X86_OP_IMM and 0 < operand.imm <= end:
                return True
    return position < len(code)


def _instructions(code: bytes) -> Iterator[Any]:
    """Decoded instructions; their addresses are offsets from the entry."""
    return iter(_decoder().disasm(code, 0))


@cache
def _decoder() -> Any:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    return decoder
