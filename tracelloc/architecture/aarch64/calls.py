"""Call instructions of 64-bit Arm. Arm Architecture Reference Manual, C4.1, "Branches"."""

from __future__ import annotations

from typing import Final

CALL_BYTES: Final = 4
_CALLS: Final = (
    (0xFC000000, 0x94000000),  # bl
    (0xFFFFFC1F, 0xD63F0000),  # blr
    (0xFFFFF81F, 0xD63F081F),  # blraaz, blrabz
    (0xFFFFF800, 0xD73F0800),  # blraa, blrab
)
"""(mask, value) of instruction words."""


def ends_in_call(code: bytes) -> bool:
    """Returns whether code bytes end with a call instruction: bl, blr, blraa and its kin."""
    word = int.from_bytes(code[-CALL_BYTES:], "little")
    return len(code) >= CALL_BYTES and any(word & mask == value for mask, value in _CALLS)
