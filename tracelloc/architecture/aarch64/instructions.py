"""Instructions of 64-bit Arm, one word each: branches, and the registers that they write.

Arm Architecture Reference Manual, C4.1. What is not certain errs on the side of more writes.
"""

import struct
from collections.abc import Iterator
from typing import Final

LINK: Final = 1 << 30  # x30, in sets of registers: a bit for each of x0 to x30
STACK_POINTER: Final = 1 << 31
EVERYTHING: Final = (1 << 32) - 1
BTI_C: Final = 0xD503245F
NOP: Final = 0xD503201F

_MOST_BYTES: Final = 4 << 20

# xpaclri; pacia1716 and its kin; paciaz, paciasp, autiasp and their kin; chkfeat.
_HINT_WRITES: Final = {
    7: LINK, **dict.fromkeys((8, 10, 12, 14), 1 << 17), **dict.fromkeys(range(24, 32), LINK),
    40: 1 << 16,
}  # fmt: skip


def words(code: bytes) -> Iterator[tuple[int, int]]:
    """Yields (offset in bytes, instruction) of code, without an incomplete last instruction."""
    for n, (number,) in enumerate(struct.iter_unpack("<I", code[: len(code) & ~3])):
        yield 4 * n, number


def _signed(value: int, bits: int) -> int:
    return value - ((value & 1 << bits - 1) << 1)


def is_jump(word: int) -> bool:
    """Whether an instruction is b."""
    return word >> 26 == 0x05


def is_direct_call(word: int) -> bool:
    """Whether an instruction is bl."""
    return word >> 26 == 0x25


def is_conditional(word: int) -> bool:
    """Whether an instruction is b.cond, bc.cond, cbz, cbnz, tbz or tbnz."""
    return word >> 24 == 0x54 or word >> 25 & 0x3F in (0x1A, 0x1B)


def direct_target(word: int, address: int) -> int | None:
    """Returns the target of b, bl or a conditional branch at an address; None of others."""
    if is_jump(word) or is_direct_call(word):
        distance = _signed(word & 0x3FFFFFF, 26)
    elif word >> 25 & 0x3F == 0x1B:  # tbz, tbnz
        distance = _signed(word >> 5 & 0x3FFF, 14)
    elif is_conditional(word):
        distance = _signed(word >> 5 & 0x7FFFF, 19)
    else:
        return None
    return address + 4 * distance


def is_register_branch(word: int) -> bool:
    """Whether an instruction is br, blr, ret, one that authenticates its target, or eret."""
    return word >> 25 == 0x6B


def is_return(word: int) -> bool:
    """Whether an instruction is ret, or retaa or its kin, which authenticate the address."""
    return is_register_branch(word) and word >> 21 & 7 == 2


def is_indirect_call(word: int) -> bool:
    """Whether an instruction is blr, or blraa or its kin, which authenticate their target."""
    return is_register_branch(word) and word >> 21 & 7 == 1


def is_trap(word: int) -> bool:
    """Whether an instruction is brk, hlt or udf, after which code does not continue."""
    return word >> 16 == 0 or word & 0xFFE0001F in (0xD4200000, 0xD4400000)


def hint_number(word: int) -> int | None:
    """Returns a hint's number: nop 0, paciasp 25, ``bti c`` 34; None for other instructions."""
    return word >> 5 & 0x7F if word & 0xFFFFF01F == NOP & 0xFFFFF01F else None


def is_exclusive(word: int) -> bool:
    """Whether an instruction loads or stores exclusively, such as ldxr, stxr; also casp."""
    return word & 0x3F800000 == 0x08000000


def is_literal_load(word: int) -> bool:
    """Whether an instruction loads or prefetches relative to its own address."""
    return word & 0x3B000000 == 0x18000000


def jump_targets(code: bytes, address: int) -> set[int]:
    """Returns the targets of jumps and conditional branches in code at an address.

    Data may look like a branch. Only the beginning of an extremely long function is searched.
    """
    return {
        target
        for offset, word in words(code[:_MOST_BYTES])
        if not is_direct_call(word)
        and (target := direct_target(word, address + offset)) is not None
    }


def written_registers(word: int) -> int:
    """Returns the general registers that an instruction may write, a bit for each."""
    group = word >> 25 & 0xF
    if group & 0b1110 == 0b1000:
        kind = word >> 23 & 0x3F
        sets_flags = word >> 29 & 1 if kind in (0x22, 0x23) else word >> 29 & 3 == 3
        has_pointer = kind in (0x22, 0x23, 0x24) and not sets_flags  # add, sub, addg, and, orr, eor
        return 1 << (word & 31) if has_pointer else _general(word)
    if group & 0b0111 == 0b0101:
        if word >> 21 & 0xFF == 0xD2:  # ccmp, ccmn
            return 0
        is_extended = word >> 24 & 0x1F == 0x0B and word >> 21 & 1 and not word >> 29 & 1
        is_tagging = word & 0xFFE0FC00 == 0x9AC01000  # irg
        return 1 << (word & 31) if is_extended or is_tagging else _general(word)
    if group & 0b1110 == 0b1010:
        return _written_by_system(word)
    if group & 0b0101 == 0b0100:
        return _written_by_memory(word)
    # Floating point and vectors: some convert to a general register of that number.
    return _general(word) if group & 0b0111 == 0b0111 else EVERYTHING


def _general(number: int) -> int:
    """Returns the bit of a register; none of number 31, the register that is always 0."""
    return 1 << (number & 31) & ~STACK_POINTER


def _written_by_system(word: int) -> int:
    if is_direct_call(word) or is_indirect_call(word):
        return LINK
    if word >> 24 == 0xD4:  # svc and others
        return EVERYTHING
    hint = hint_number(word)
    if hint is not None:
        return _HINT_WRITES.get(hint, 0)
    reads_system = word >> 22 == 0x354 and word >> 21 & 1  # mrs, sysl
    return _general(word) if reads_system else 0


def _written_by_memory(word: int) -> int:
    first, base, second = word & 31, word >> 5 & 31, word >> 10 & 31
    status = word >> 16 & 31
    kind, is_vector = word >> 28 & 3, word >> 26 & 1
    if kind == 0:
        if is_vector:
            return 1 << base if word >> 23 & 1 else 0
        numbers = (first, first + 1, second, status, status + 1)
        return sum({_general(number) for number in numbers})
    if kind == 1:
        if word >> 24 & 1:  # tags; copies and sets of memory
            return _general(first) | 1 << base | _general(status)
        return 0 if is_vector else _general(first)
    if kind == 2:
        loaded = word >> 22 & 1 and not is_vector
        written = _general(first) | _general(second) if loaded else 0
        return written | (1 << base if word >> 23 & 1 else 0)
    return _written_by_single(word, first, base, is_vector)


def _written_by_single(word: int, first: int, base: int, is_vector: int) -> int:
    operation = word >> 22 & 3
    is_prefetch = operation == 2 and word >> 30 == 3
    loaded = 0 if is_vector or operation == 0 or is_prefetch else _general(first)
    if word >> 24 & 1:
        return loaded
    mode = word >> 10 & 3
    if not word >> 21 & 1:
        return loaded | (1 << base if mode & 1 else 0)
    if mode == 0:  # atomic; ld64b loads eight registers
        return EVERYTHING if word >> 12 & 0xF == 0xD else _general(first)
    if mode & 1:  # ldraa
        return _general(first) | 1 << base
    return loaded
