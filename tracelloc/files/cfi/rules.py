"""Built-in rules: for code without call-frame information, and for the ends of stacks."""

from functools import cache
from typing import Final

from tracelloc.architecture import Architecture
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.dataclass import dataclass
from tracelloc.files.cfi.core import EXPRESSION, OFFSET, UNDEFINED, RuleSet


@dataclass(frozen=True, slots=True)
class BuiltInRules:
    """The unwind rules for code that no file describes, on one architecture."""

    # For code without call-frame information: a frame with a frame pointer, if any.
    frame_pointer: RuleSet
    outermost: RuleSet  # For code without a caller on its stack
    signal_frame: RuleSet  # The rules of glibc's `__restore_rt`, for C libraries that provide none


def _based(register: int, number: int) -> bytes:
    """Returns the DWARF expression for a register + a number (below 8192), as short as possible."""
    small = number < 64
    operand = [number] if small else [number & 0x7F | 0x80, number >> 7]
    return bytes([0x70 + register, *operand])


@cache
def built_in_rules(architecture: Architecture) -> BuiltInRules:
    """Returns the built-in unwind rules of an architecture."""
    numbers = architecture.dwarf
    sp, fp, address = numbers.stack_pointer, numbers.frame_pointer, numbers.return_address
    places = architecture.signal_frame.places
    return BuiltInRules(
        frame_pointer=RuleSet(
            fp,
            16,
            registers={fp: (OFFSET, -16, b""), address: (OFFSET, -8, b"")},
            is_fallback=True,
            architecture=architecture,
        ),
        outermost=RuleSet(
            sp,
            architecture.return_address_bytes,
            registers={address: (UNDEFINED, 0, b"")},
            architecture=architecture,
        ),
        signal_frame=RuleSet(
            -1,
            0,
            _based(sp, places[sp]) + b"\x06",
            {number: (EXPRESSION, 0, _based(sp, place)) for number, place in places.items()},
            numbers.program_counter,
            is_signal=True,
            architecture=architecture,
        ),
    )


# The row of code without call-frame information, on all architectures.
FALLBACK_ROW: Final = built_in_rules(X86_64).frame_pointer.row(0)
# The row of code without a caller, on all architectures.
END_ROW: Final = built_in_rules(X86_64).outermost.row(0)

RBX: Final = 3
RBP: Final = X86_64.dwarf.frame_pointer
RSP: Final = X86_64.dwarf.stack_pointer
RIP: Final = X86_64.dwarf.return_address
FRAME_POINTER: Final = built_in_rules(X86_64).frame_pointer
OUTERMOST: Final = built_in_rules(X86_64).outermost
SIGNAL_FRAME: Final = built_in_rules(X86_64).signal_frame
SIGNAL_RETURN: Final = X86_64.signal_frame.return_code
