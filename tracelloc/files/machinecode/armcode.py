"""Probe offsets and paths in 64-bit Arm code.

The kernel simulates a few instructions under a uprobe, single-steps others out of line, and
refuses some (arch/arm64/kernel/probes/decode-insn.c). It would step vector loads of literals with
a wrong address: the target would crash. It does not know that a breakpoint between a load
exclusive and its store makes the loop endless. Besides the arguments, x30 has to be as at entry:
a return probe replaces it, and paciasp signs it with the stack pointer.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from tracelloc.architecture.aarch64 import instructions as arm
from tracelloc.architecture.aarch64.instructions import direct_target, words
from tracelloc.files.machinecode.instruction import MOST_CODE, CodeFlow, Instruction, ProbeOffset

# nop, xpaclri, pacia1716, pacib1716, paciaz to pacibsp, bti: not yield, wfe or autiasp.
_STEPPED_HINTS: Final = frozenset({0, 7, 8, 10, 24, 25, 26, 27, 32, 34, 36, 38})


def is_simulated(word: int) -> bool:
    """Whether the kernel simulates an instruction: direct branches, br, blr, ret, adr, adrp."""
    if direct_target(word, 0) is not None:
        return not (word >> 24 == 0x54 and word & 0x10)  # bc.cond
    is_plain = word & 0xFF9FFC1F == 0xD61F0000 and word >> 21 & 3 != 3  # br, blr, ret
    return is_plain or word & 0x1F000000 == 0x10000000


def can_probe(word: int) -> bool:
    """Whether an instruction can have a probe, simulated or not."""
    if is_simulated(word):
        return True
    if arm.is_register_branch(word) or word >> 24 in (0x54, 0xD4) or arm.is_trap(word):
        return False
    if arm.is_literal_load(word) or arm.is_exclusive(word):
        return False
    hint = arm.hint_number(word)
    if hint is not None:
        return hint in _STEPPED_HINTS
    is_msr = word & 0xFFF00000 == 0xD5100000 or word & 0xFFF8F01F == 0xD500401F
    return not is_msr


def find_probe_offset(code: bytes, arguments: Iterable[str]) -> ProbeOffset | None:
    """Returns the offset of a simulated instruction, or else of the first one for a probe.

    ``code`` is the whole function, ``arguments`` the registers that must be intact. None if no
    instruction before they change can have a probe.
    """
    kept = arm.LINK | arm.STACK_POINTER | sum(1 << int(name[1:]) for name in set(arguments))
    stepped: ProbeOffset | None = None
    for offset, word in words(code[:MOST_CODE]):
        if is_simulated(word) or (stepped is None and can_probe(word)):
            if offset and (len(code) > MOST_CODE or _is_branched_to(code, offset)):
                break
            if is_simulated(word):
                return ProbeOffset(offset, False)
            stepped = ProbeOffset(offset, True)
        if arm.is_register_branch(word) or arm.is_trap(word) or arm.is_exclusive(word):
            break
        if arm.written_registers(word) & kept:
            break
    return stepped


def at_entry(code: bytes) -> ProbeOffset | None:
    """Returns the offset of a probe on the entry; None if it can't have one."""
    word = int.from_bytes(code[:4], "little")
    return ProbeOffset(0, not is_simulated(word)) if len(code) >= 4 and can_probe(word) else None


def nop_at(code: bytes) -> tuple[int, bool]:
    """Returns (bytes of the nop at the code's start, or 0; whether a probe there does harm)."""
    return (4 if code[:4] == arm.NOP.to_bytes(4, "little") else 0), False


def _is_branched_to(code: bytes, end: int) -> bool:
    return any(
        not arm.is_direct_call(word)
        and (target := direct_target(word, offset)) is not None
        and 0 < target <= end
        for offset, word in words(code)
    )


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Yields the decoded instructions of code at an address."""
    for offset, word in words(code):
        at = address + offset
        target, text = direct_target(word, at), f"br x{word >> 5 & 31}"
        yield Instruction(at, 4, _flow(word), target, text, can_probe(word))


def _flow(word: int) -> CodeFlow:
    if arm.is_return(word):
        return CodeFlow.RETURN
    if arm.is_direct_call(word) or arm.is_indirect_call(word):
        return CodeFlow.CALL
    if arm.is_jump(word) or arm.is_register_branch(word):
        return CodeFlow.JUMP
    if arm.is_conditional(word):
        return CodeFlow.BRANCH
    return CodeFlow.TRAP if arm.is_trap(word) else CodeFlow.NEXT
