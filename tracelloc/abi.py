"""What the probes send: mirrors of the structs and enums in ``probes/event.h``.

Every offset, size and value here equals the C side's; a test compiles the header
and compares. All times are CLOCK_MONOTONIC nanoseconds, all sizes bytes.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

import numpy as np

EVENT_SIZE_BITS: Final = 56
EVENT_SIZE_MASK: Final = (1 << EVENT_SIZE_BITS) - 1
EVENT_KIND_MASK: Final = 0xF

EVENT_FIELDS: Final = [
    ("address", "<u8"),
    ("size_tag", "<u8"),
    ("stack_id", "<u8"),
    ("time_ns", "<u8"),
    ("tid", "<u4"),
    ("tgid", "<u4"),
]
"""``struct event``."""

STACK_HEAD_FIELDS: Final = [("stack_id", "<u8"), ("n_frames", "<u4"), ("flags", "<u4")]
"""``struct stack`` up to its frames, which are ``n_frames`` little-endian u64."""

CONTROL_FIELDS: Final = [("trampoline", "<u8"), ("live", "<u4"), ("woken", "<u4")]
"""``struct control``."""

CONTROL_DTYPE: Final = np.dtype(CONTROL_FIELDS)


class EventKind(IntEnum):
    """What happened to a block (``enum event_kind``)."""

    ALLOC = 1
    FREE = 2
    REALLOC_FREE = 3
    RESTORE = 4


class StackFlag(IntFlag):
    """How a stack walk ended (``enum stack_flag``)."""

    TRUNCATED = 1
    UNREADABLE = 2
    BROKEN = 4


class Counter(IntEnum):
    """What the probes count since they were loaded (``enum counter``)."""

    LOST_ALLOCS = 0
    LOST_FREES = 1
    LOST_RESTORES = 2
    LOST_STACKS = 3
    STACK_TABLE_FULL = 4
    CALL_TABLE_FULL = 5
    UNPAIRED_RETURNS = 6
    ABANDONED_CALLS = 7
    UNREADABLE_RESULTS = 8
    EARLIER_CALLS = 9
    SAMPLE_TABLE_FULL = 10


LOST_EVENT_COUNTERS: Final = (Counter.LOST_ALLOCS, Counter.LOST_FREES, Counter.LOST_RESTORES)
"""Counters of events that never reached user space because their ring was full."""
