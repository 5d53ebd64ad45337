"""Result of unwinding a stack by the full rules: its frames, and the reason why it ends.

``core.unwind`` unwinds from registers and a copy of the stack's memory. If the copy lacks a word,
the stack ends there: nothing is guessed.
"""

from enum import IntEnum
from typing import NamedTuple


class Reason(IntEnum):
    """Why a frame has no unwind row: ``enum row_reason`` of probes/row.h."""

    CFA_REGISTER = 1  # The frame is found through another register than rsp or rbp
    CFA_EXPRESSION = 2  # The frame is found by an expression of another shape than the known ones
    CFA_OFFSET = 3  # The frame is larger than 2 GiB
    RETURN_ADDRESS = 4  # The return address is not right below the caller's frame
    SAVED_BP = 5  # rbp was not saved in the frame: in a register, or nowhere
    CALLER_SP = 6  # The caller's stack pointer is not where the frame ends
    SIGNAL_FRAME = 7  # A signal frame with another layout than the kernel's
    DAMAGED = 8
    TOO_LONG = 9  # The programs of the unwind table are longer than any compiler's


class CfiError(Exception):
    """There is call-frame information, but it can't be used; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"call-frame information: {reason.name}")
        self.reason = reason


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
    fallback_count: int  # Frames without information: the frame pointer, if any, led on
