"""Rows taken apart: the layout of probes/row.h."""

from enum import IntEnum
from typing import NamedTuple

from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.cfi.module import built_in_rules
from tracelloc.files.cfi.walk import Reason

RBX = 3
RBP = X86_64.dwarf.frame_pointer
RSP = X86_64.dwarf.stack_pointer
RIP = X86_64.dwarf.return_address
RULES = built_in_rules(X86_64)
FRAME_POINTER, OUTERMOST, SIGNAL_FRAME = RULES.frame_pointer, RULES.outermost, RULES.signal_frame
SIGNAL_RETURN = X86_64.signal_frame.return_code


class Kind(IntEnum):
    """How to step from a frame to its caller: ``enum row_kind``."""

    SP = 1
    BP = 2
    REALIGNED = 3
    SIGNAL = 4
    END = 6
    FRAME_POINTER = 7
    UNENCODABLE = 8


BP_UNCHANGED = 0
BP_AT_BP = 1
SIGNAL_IP = 168


class Row(NamedTuple):
    kind: Kind
    detail: int
    bp_slot: int
    cfa_offset: int

    @property
    def reason(self) -> Reason | None:
        return Reason(self.detail) if self.kind is Kind.UNENCODABLE else None


def decode(row: int) -> Row:
    slot, offset = row >> 16 & 0xFFFF, row >> 32 & 0xFFFFFFFF
    return Row(
        Kind(row & 0xFF),
        row >> 8 & 0xFF,
        slot - ((slot & 0x8000) << 1),
        offset - ((offset & 0x80000000) << 1),
    )


class ReturnPlace(IntEnum):
    """Where the return address is in rows of 64-bit Arm: ``enum row_ra``."""

    BESIDE_FP = 0
    REGISTER = 1
    ITS_SLOT = 2


class ArmRow(NamedTuple):
    kind: Kind
    place: ReturnPlace
    slot: int  # In bytes
    cfa_offset: int


def decode_arm(row: int) -> ArmRow:
    """A row of 64-bit Arm that is not unencodable."""
    kind, detail, slot, cfa_offset = decode(row & ~0xF0)
    assert detail == 0
    assert kind is not Kind.UNENCODABLE
    return ArmRow(kind, ReturnPlace(row >> 4 & 0xF), 8 * slot, cfa_offset)
