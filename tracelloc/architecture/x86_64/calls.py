"""Calls and jumps in x86-64 code."""

from __future__ import annotations

import re
from typing import Final

LONGEST_CALL_BYTES: Final = 7
"""Without prefixes: ff /2 with a SIB byte and a displacement of four bytes."""

_JUMP: Final = re.compile(rb"\x0f(?=[\x80-\x8f])", re.DOTALL)
"""jcc with 4 bytes of distance: 0F 8x."""
_JUMP_BYTES: Final = 6


def jump_targets(code: bytes, address: int) -> set[int]:
    """Targets of conditional jumps in code at an address; some may not be real."""
    found = set()
    for match in _JUMP.finditer(code):
        at = match.start()
        distance = code[at + 2 : at + _JUMP_BYTES]
        found.add(address + at + _JUMP_BYTES + int.from_bytes(distance, "little", signed=True))
    return found


def ends_in_call(code: bytes) -> bool:
    """Returns whether code bytes end with a call instruction.

    ``e8 rel32``, or ``ff /2`` with its operand in a register or in memory (Intel SDM
    volume 2, CALL and tables 2-2, 2-3). Prefixes precede these bytes.
    """
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    return any(
        code[-length] == 0xFF and _indirect_call_length(code[-length:]) == length
        for length in range(2, min(len(code), 7) + 1)
    )


def _indirect_call_length(code: bytes) -> int:
    """Length of the ``ff /2`` instruction at the start of ``code``; 0 for another instruction."""
    modrm = code[1]
    if modrm >> 3 & 7 != 2:
        return 0
    mode, operand = modrm >> 6, modrm & 7
    if mode == 3:
        return 2
    length = 2
    if operand == 4:
        length += 1
        if mode == 0 and len(code) > 2 and code[2] & 7 == 5:
            return length + 4
    elif mode == 0 and operand == 5:
        return length + 4
    return length + (0, 1, 4)[mode]
