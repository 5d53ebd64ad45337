"""How a stack walk ended, and why a stack may be partial."""

from __future__ import annotations

from enum import IntFlag
from typing import Final


class StackFlag(IntFlag):
    """How a stack walk ended (``enum stack_flag``)."""

    TRUNCATED = 1
    UNREADABLE = 2
    BROKEN = 4
    GUESSED = 8
    LOST_MISS = 16
    SHORT_COPY = 32
    BAD_CFI = 64
    UNMAPPED = 128
    PYTHON = 256
    CODE = 512
    NAMES = 1024


PARTIAL_REASONS: Final = {
    StackFlag.LOST_MISS: "its unwind entries were not ready yet",
    StackFlag.SHORT_COPY: "it continues beyond the memory that was copied",
    StackFlag.BAD_CFI: "call-frame information that can't be used",
    StackFlag.UNMAPPED: "an address where no code is mapped",
    StackFlag.UNREADABLE: "memory that can't be read",
    StackFlag.BROKEN: "code without frame pointers or call-frame information",
    StackFlag.TRUNCATED: "deeper than --max-frames",
}
"""Why a stack ends before its outermost frame, for display."""

PARTIAL: Final = StackFlag.LOST_MISS | StackFlag.SHORT_COPY | StackFlag.BAD_CFI | StackFlag.UNMAPPED
"""Stacks that the probes left unfinished, and that could not be finished."""

CUT: Final = StackFlag.LOST_MISS | StackFlag.SHORT_COPY
"""Stacks that end where the probes happened to stop: many call sites may share such a stack."""
