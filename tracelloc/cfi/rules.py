"""What call-frame information says about one address: where the caller's state is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# DWARF numbers of the registers (AMD64 supplement, figure 3.36).
RBX: Final = 3
RBP: Final = 6
RSP: Final = 7
R12: Final = 12
R13: Final = 13
R14: Final = 14
R15: Final = 15
RIP: Final = 16
"""The return address column; not a register one could name."""
REGISTERS: Final = 17
"""Rules are kept for these; vector registers are of no use for finding a caller."""
CALLEE_SAVED: Final = (RBX, RBP, R12, R13, R14, R15)
"""What a call leaves as it was."""

# How a register's value in the caller is found.
UNDEFINED: Final = 0
"""Nowhere: it is gone. For the return address: there is no caller."""
SAME: Final = 1
"""The value is still in the register."""
OFFSET: Final = 2
"""In memory, ``number`` bytes from the CFA."""
VAL_OFFSET: Final = 3
"""The value is the CFA plus ``number``."""
REGISTER: Final = 4
"""In the register of that ``number``."""
EXPRESSION: Final = 5
"""In memory, where the expression says."""
VAL_EXPRESSION: Final = 6
"""The value is the result of the expression."""

Rule = tuple[int, int, bytes]
"""How, number, expression (in DWARF operations). A plain tuple: millions are made."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules at one address.

    The CFA (canonical frame address) is the value of the stack pointer before the call
    that made this frame: ``cfa_register`` plus ``cfa_offset``, or else the result of
    ``cfa_expression`` if that is not empty.
    """

    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes = b""
    registers: Mapping[int, Rule] = field(default_factory=dict)
    """By DWARF number. A register without a rule is as it was."""
    return_register: int = RIP
    """The register whose rule is that of the return address."""
    is_signal: bool = False
    """The caller was interrupted: its address is not behind a call."""
    is_fallback: bool = False
    """Nothing is known about this code; these are the rules of a frame pointer."""


FRAME_POINTER: Final = RuleSet(
    RBP, 16, registers={RBP: (OFFSET, -16, b""), RIP: (OFFSET, -8, b"")}, is_fallback=True
)
"""For code without call-frame information: a frame with a frame pointer, if any."""


OUTERMOST: Final = RuleSet(RSP, 8, registers={RIP: (UNDEFINED, 0, b"")})
"""For code that nobody called, as far as its stack tells."""


def _sleb(number: int) -> bytes:
    """SLEB128 as the C library writes it: in one byte where that is enough."""
    return bytes([number]) if number < 64 else bytes([number & 0x7F | 0x80, number >> 7])


SIGNAL_SP: Final = 160
SIGNAL_BP: Final = 120
SIGNAL_IP: Final = 168
"""Where the kernel saves registers for a signal handler, in bytes from its frame's end:
``uc_mcontext`` of ``struct rt_sigframe`` (arch/x86/include/asm/sigframe.h)."""
_SIGNAL_PLACES: Final = {
    8: 40, 9: 48, 10: 56, 11: 64, 12: 72, 13: 80, 14: 88, 15: 96, 5: 104, 4: 112,
    RBP: SIGNAL_BP, RBX: 128, 1: 136, 0: 144, 2: 152, RSP: SIGNAL_SP, RIP: SIGNAL_IP,
}  # fmt: skip

SIGNAL_FRAME: Final = RuleSet(
    -1,
    0,
    b"\x77" + _sleb(SIGNAL_SP) + b"\x06",
    {n: (EXPRESSION, 0, b"\x77" + _sleb(at)) for n, at in _SIGNAL_PLACES.items()},
    is_signal=True,
)
"""What the C library's ``__restore_rt`` says about itself, for those that say nothing."""

SIGNAL_RETURN: Final = bytes.fromhex("48c7c00f0000000f05")
"""mov $SYS_rt_sigreturn, %rax; syscall: where signal handlers return to."""
