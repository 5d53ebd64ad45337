"""Result of unwinding a stack by the full rules: its frames, and the reason why it ends.

``core.unwind`` unwinds from registers and a copy of the stack's memory. If the copy lacks a word,
the stack ends there: nothing is guessed.
"""

from enum import IntEnum
from typing import NamedTuple


class End(IntEnum):
    """Why a stack ends, as in expressions.pxd. Only stacks with ``OUTERMOST`` are complete."""

    OUTERMOST = 1
    LIMIT = 2  # More frames than were asked for
    OUTSIDE_COPY = 3  # Memory that was not copied
    NO_MODULE = 4  # An address where no file is mapped
    DAMAGED = 5
    UNKNOWN_REGISTER = 6  # A register that was not recorded
    NO_PROGRESS = 7  # A caller that is not further up the stack


class Walk(NamedTuple):
    """The frames of one stack, as far as it could be unwound, and why it ends."""

    frames: tuple[int, ...]  # Address of execution, then return addresses, innermost first
    end: End
    # Number of frames without call-frame information: their callers were found by the frame
    # pointer, if they had one.
    fallback_count: int
