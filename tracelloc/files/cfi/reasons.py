"""Why a frame has no unwind row: its call-frame information can't be used."""

from enum import IntEnum


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
