"""Built-in rules: for code without call-frame information, and for the ends of stacks."""

from __future__ import annotations

from typing import Final

from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.cfi.core import EXPRESSION, OFFSET, UNDEFINED, RuleSet

RBX: Final = 3
RBP: Final = X86_64.dwarf.frame_pointer
RSP: Final = X86_64.dwarf.stack_pointer
RIP: Final = X86_64.dwarf.return_address

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


_SIGNAL_PLACES: Final = X86_64.signal_frame.places

SIGNAL_FRAME: Final = RuleSet(
    -1,
    0,
    _breg_rsp(_SIGNAL_PLACES[RSP]) + b"\x06",
    {n: (EXPRESSION, 0, _breg_rsp(at)) for n, at in _SIGNAL_PLACES.items()},
    is_signal=True,
)
"""The rules of glibc's ``__restore_rt``, for C libraries that provide none."""

SIGNAL_RETURN: Final = X86_64.signal_frame.return_code
"""Where signal handlers return to."""
