"""Probe offsets in an x86-64 function: at an instruction of low cost.

The kernel emulates a few instructions under a uprobe and single-steps every other one
out of line, which on some machines is thirty times as slow (arch/x86/kernel/uprobes.c:
``branch_setup_xol_ops``, ``push_setup_xol_ops``). A probe may sit past the entry if every
call of the function passes it exactly once, and if the argument registers and the stack
pointer are still as at entry. The same rules apply to arming a return probe.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import capstone
from capstone import x86_const as x86

from tracelloc.files.machinecode.instruction import MOST_CODE, CodeFlow, Instruction, ProbeOffset

# A register and its parts: writing any of them changes the argument.
_REGISTERS: Final = {
    "rdi": (x86.X86_REG_RDI, x86.X86_REG_EDI, x86.X86_REG_DI, x86.X86_REG_DIL),
    "rsi": (x86.X86_REG_RSI, x86.X86_REG_ESI, x86.X86_REG_SI, x86.X86_REG_SIL),
    "rdx": (x86.X86_REG_RDX, x86.X86_REG_EDX, x86.X86_REG_DX, x86.X86_REG_DL, x86.X86_REG_DH),
    "rcx": (x86.X86_REG_RCX, x86.X86_REG_ECX, x86.X86_REG_CX, x86.X86_REG_CL, x86.X86_REG_CH),
    "r8": (x86.X86_REG_R8, x86.X86_REG_R8D, x86.X86_REG_R8W, x86.X86_REG_R8B),
    "r9": (x86.X86_REG_R9, x86.X86_REG_R9D, x86.X86_REG_R9W, x86.X86_REG_R9B),
    "rsp": (x86.X86_REG_RSP, x86.X86_REG_ESP, x86.X86_REG_SP, x86.X86_REG_SPL),
}

_FLOW: Final = (
    capstone.CS_GRP_JUMP, capstone.CS_GRP_CALL, capstone.CS_GRP_RET, capstone.CS_GRP_INT,
    capstone.CS_GRP_IRET, capstone.CS_GRP_BRANCH_RELATIVE,
)  # fmt: skip
# Linux 6.18 turns a probe on a nop of this length into a call that kills forked children, and
# kernels after it may do so with longer ones.
_HARMFUL_NOP_BYTES: Final = 5
_ENTRY_BYTES: Final = 64  # More than the bytes of nops that any compiler puts at a function's entry


def find_probe_offset(code: bytes, arguments: Iterable[str]) -> ProbeOffset:
    """Returns the offset of an emulated instruction in an x86-64 function, or else the entry.

    ``code`` is the whole function, ``arguments`` the registers that must be intact, of
    those that hold arguments.
    """
    if len(code) > MOST_CODE:
        return at_entry(code)
    kept = {part for name in (*arguments, "rsp") for part in _REGISTERS[name]}
    for instruction in instructions(code):
        offset = instruction.address
        if is_emulated(bytes(instruction.bytes)):
            if offset and _is_branched_to(code, offset):
                break
            return ProbeOffset(offset, False)
        flows = any(map(instruction.group, _FLOW))
        if flows or kept.intersection(instruction.regs_access()[1]):
            break
    return at_entry(code)


def at_entry(code: bytes) -> ProbeOffset:
    """Returns offset 0, or the next instruction's if a probe on the entry would do harm."""
    offset = 0
    for instruction in instructions(code[:_ENTRY_BYTES]):
        if instruction.id != x86.X86_INS_NOP or instruction.size < _HARMFUL_NOP_BYTES:
            break
        offset += instruction.size
    return ProbeOffset(offset, not is_emulated(code[offset:]))


def nop_at(code: bytes) -> tuple[int, bool]:
    """Returns (bytes of the nop at the code's start, or 0; whether a probe there does harm)."""
    for instruction in instructions(code):
        if instruction.id == x86.X86_INS_NOP:
            return instruction.size, instruction.size >= _HARMFUL_NOP_BYTES
        break
    return 0, False


def is_emulated(code: bytes) -> bool:
    """Whether the kernel emulates the instruction at the start of ``code`` (x86-64).

    Every kernel that has ring buffers emulates push of a 64-bit register, short and near jumps,
    near calls and the one-byte nop. Only new kernels emulate longer nops, and nops of five
    bytes never carry a probe, which would break forked children on Linux 6.18.
    """
    if not code:
        return False
    first, second = code[0], code[1] if len(code) > 1 else 0
    if first in (0xE8, 0xE9, 0xEB, 0x90) or 0x70 <= first <= 0x7F or 0x50 <= first <= 0x57:
        return True
    return (first == 0x0F and 0x80 <= second <= 0x8F) or (first == 0x41 and 0x50 <= second <= 0x57)


def _is_branched_to(code: bytes, end: int) -> bool:
    """Whether a branch of the function leads to one of its bytes 1 … ``end``.

    A probe on such a byte would be hit again without a new call. Code that cannot be decoded to
    its end counts as branched to.
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
    """Yields capstone's decoded instructions of code at an address."""
    return iter(_decoder().disasm(code, address))


@cache
def _decoder() -> Any:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    return decoder


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Yields the instructions of code at an address, as far as it can be decoded."""
    for each in instructions(code, address):
        flow = _FLOWS.get(each.id)
        if flow is None:
            flow = _FLOWS[each.id] = _flow(each)
        target = _target(each) if flow in _GOING else None
        is_shown = target is None and flow is not CodeFlow.NEXT
        text = f"{each.mnemonic} {each.op_str}" if is_shown else ""
        yield Instruction(each.address, each.size, flow, target, text)


# How each kind of instruction continues, by capstone's numbers; capstone takes long to tell.
_FLOWS: Final[dict[int, CodeFlow]] = {}
_GOING: Final = (CodeFlow.CALL, CodeFlow.JUMP, CodeFlow.BRANCH)


def _flow(instruction: Any) -> CodeFlow:
    if instruction.group(capstone.CS_GRP_RET):
        return CodeFlow.RETURN
    if instruction.group(capstone.CS_GRP_CALL):
        return CodeFlow.CALL
    if instruction.id in (x86.X86_INS_UD2, x86.X86_INS_HLT, x86.X86_INS_INT3):
        return CodeFlow.TRAP
    if not instruction.group(capstone.CS_GRP_JUMP):
        return CodeFlow.NEXT
    return CodeFlow.JUMP if instruction.id == x86.X86_INS_JMP else CodeFlow.BRANCH


def _target(instruction: Any) -> int | None:
    (operand,) = instruction.operands[:1] or (None,)
    if operand is None or operand.type != x86.X86_OP_IMM:
        return None
    return int(operand.imm)
