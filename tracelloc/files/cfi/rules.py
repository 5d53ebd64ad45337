"""Built-in rules: for code without call-frame information, and for the ends of stacks."""

from __future__ import annotations

from typing import Final

from tracelloc.files.cfi.core import EXPRESSION, OFFSET, UNDEFINED, RuleSet

# DWARF numbers of the registers (AMD64 supplement, figure 3.36).
RBX: Final = 3
RBP: Final = 6
RSP: Final = 7
RIP: Final = 16
"""The return address column; not a register one could name."""

FRAME_POINTER: Final = RuleSet(
    RBP, 16, registers={RBP: (OFFSET, -16, b""), RIP: (OFFSET, -8, b"")}, is_fallback=True
)
"""For code without call-frame information: a frame with a frame pointer, if any."""
FALLBACK_ROW: Final = FRAME_POINTER.row(0)

OUTERMOST: Final = RuleSet(RSP, 8, registers={RIP: (UNDEFINED, 0, b"")})
"""For code without a caller on its stack."""
END_ROW: Final = OUTERMOST.row(0)


def _breg_rsp(number: int) -> bytes:
    """The expression for rsp + number, below 8192: in one byte where that is enough."""
    small = number < 64
    return b"\x77" + bytes([number] if small else [number & 0x7F | 0x80, number >> 7])


_SIGNAL_PLACES: Final = {
    8: 40, 9: 48, 10: 56, 11: 64, 12: 72, 13: 80, 14: 88, 15: 96, 5: 104, 4: 112,
    RBP: 120, RBX: 128, 1: 136, 0: 144, 2: 152, RSP: 160, RIP: 168,
}  # fmt: skip
"""Where the kernel saves registers for a signal handler, in bytes from its frame's end:
``uc_mcontext`` of ``struct rt_sigframe`` (arch/x86/include/asm/sigframe.h)."""

SIGNAL_FRAME: Final = RuleSet(
    -1,
    0,
    _breg_rsp(_SIGNAL_PLACES[RSP]) + b"\x06",
    {n: (EXPRESSION, 0, _breg_rsp(at)) for n, at in _SIGNAL_PLACES.items()},
    is_signal=True,
)
"""The rules of glibc's ``__restore_rt``, for C libraries that provide none."""

SIGNAL_RETURN: Final = bytes.fromhex("48c7c00f0000000f05")
"""mov $SYS_rt_sigreturn, %rax; syscall: where signal handlers return to."""
