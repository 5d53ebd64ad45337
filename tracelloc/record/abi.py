"""Data formats of the probes: mirrors of the structs and enums in ``probes/event.h``.

Every offset, size and value here equals the C side's; a test compiles the header
and compares. All times are CLOCK_MONOTONIC nanoseconds, all sizes bytes.
"""

from enum import IntEnum, IntFlag
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.system.syscalls import layout


def _fields(*members: tuple[Any, str]) -> list[tuple[str, Any]]:
    return list(layout(*members))


POSITION_FIELDS: Final = [("count", "<u8"), ("unused", ("<u8", (7,)))]  # `struct position`
POSITION_DTYPE: Final = np.dtype(POSITION_FIELDS)
SPILL_KEY_FIELDS: Final = _fields(("<u8", "address"), ("<u4", "image parity"))  # `struct spill_key`
SPILLED_FIELDS: Final = _fields(("<u8", "size stack_id time_ns"), ("<u4", "tid flags"))
# `struct stack` up to its frames, which are `n_frames` little-endian u64.
STACK_HEAD_FIELDS: Final = _fields(("<u8", "stack_id"), ("<u2", "n_frames flags"), ("<u4", "image"))
CONTROL_FIELDS: Final = _fields(  # `struct control`
    ("<u4", "reporting woken"),
    ("<u8", "clock epoch"),
    (("<u4", (2,)), "full"),
    ("<u4", "tgid stop_at_loads"),
    ("<u8", "kept_stacks sessions"),
)
CONTROL_DTYPE: Final = np.dtype(CONTROL_FIELDS)
PARITIES: Final = 2  # Number of epochs that the probes distinguish

PYTHON_FIELDS: Final = _fields(  # `struct python`
    ("<u8", "interpreter namespace_device namespace_inode"),
    ("<u2", "threads next thread_id frame has_inner inner code previous instruction entry"),
    ("<u2", "entry_shift least_entry has_shims has_no_versions head unused"),
)
PYTHON_OFFSETS: Final = tuple(name for name, kind in PYTHON_FIELDS[:-1] if kind == "<u2")
# Where `struct python_code` stores the copied pieces, in bytes from its field `code`.
PYTHON_PIECE_STARTS: Final = (80, 336, 592, 912)

PYTHON_ENTRY: Final = 1  # Bit in the first word of a Python frame (`struct python_stack`)

SPACE_FIELDS: Final = _fields(  # `struct space`
    ("<u8", "tag trampoline loader_state unloading loads changes"),
    ("<u4", "image moves"),
    ("<u8", "first_library sent_library loader_calls lineage tag_image"),
    (PYTHON_FIELDS, "python"),
)
SPACE_DTYPE: Final = np.dtype(SPACE_FIELDS)
SALT_BITS: Final = 6  # Low bits of a tag that select the set of rows (`ROW_SALT_BITS`)
# Low bits of a space's tag, which are in the keys of rows; above them is its generation.
TAG_BITS: Final = 16
GENERATION_MASK: Final = 0xFFFFFFFF

MISS_REGISTERS: Final = len(native().miss_registers)
# Bytes of stack that a bit of `stack_pages` stands for (`STACK_PAGE`).
STACK_PAGE_BYTES: Final = 4096
LIBRARY_PATH_BYTES: Final = 256  # `struct loaded_library`
# `struct miss`, followed by the copy of the stack.
MISS_FIELDS: Final = _fields(
    ("<u8", "stack_id"),
    ("<u4", "generation image"),
    ("<u8", "missing stack_address"),
    ("<u4", "stack_pages tid"),
    (("<u8", (MISS_REGISTERS,)), "registers"),
)

ROW_WAYS: Final = 4
# `struct row_set` in `probes/maps.h`.
ROW_SET_DTYPE: Final = np.dtype([("keys", "<u8", (ROW_WAYS,)), ("rows", "<u8", (ROW_WAYS,))])
ROW_LASTS: Final = 1 << 15  # Bit of rows that are valid while mappings change (`ROW_LASTS`)
KEY_TAG_SHIFT: Final = 48  # Shift of the tag in a row's key, above the address
REGION_SHIFT: Final = 16


def region_keys(regions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the keys of regions (``REGION_KEY``), given their addresses >> ``REGION_SHIFT``.

    No address of code is such a number: it has fewer bits, or other lowest bits.
    """
    if native().instruction_bytes > 1:
        return regions << np.uint64(2) | np.uint64(1)
    return regions | np.uint64(1 << 47)


NEAR_SPACES: Final = 1024  # Elements of map `near_spaces` (`probes/maps.h`)


class FunctionCode(IntEnum):
    """What a probed function does (``enum function_kind``)."""

    CACHE_DRAIN = 0
    ALLOC = 1
    CALLOC = 2
    POSIX_MEMALIGN = 3
    REALLOC = 4
    REALLOCF = 5
    REALLOCARRAY = 6
    RESIZE = 7
    FREE = 8
    OUTER_FREE = 9
    MAP = 10
    UNMAP = 11
    REMAP = 12
    SBRK = 13
    RETURN = 14
    EXIT = 15


COOKIE_THROWS: Final = 0x10
COOKIE_ARGUMENT_SHIFT: Final = 8
COOKIE_ARGUMENT_BITS: Final = 4
COOKIE_SLOT_SHIFT: Final = 24
COOKIE_SLOT_MASK: Final = 0xFF
COOKIE_PLACE_SHIFT: Final = 32
COOKIE_PLACE_MASK: Final = 0xFFF
COOKIE_SIZE_SHIFT: Final = 44  # Bits of a probe's cookie (`COOKIE_` in `probes/event.h`)

USDT_PROBES: Final = 4096  # Elements of map `usdt_probes`
USDT_NO_REGISTER: Final = 0xFF
USDT_ARGUMENT_FIELDS: Final = _fields(  # `struct usdt_argument`
    ("<u8", "constant"), ("u1", "base index shift in_memory skip_bits bytes is_signed unused")
)
USDT_PROBE_FIELDS: Final = _fields((USDT_ARGUMENT_FIELDS, "pointer size weight device"))


class EventRingNumber(IntEnum):
    """A ring of events (``enum event_ring``)."""

    EVENTS = 0
    MAPPINGS = 1


class PythonProgram(IntEnum):
    """BPF programs that call each other to walk Python frames (``enum python_program``)."""

    WALKER = 0
    ALLOCATOR = 1
    MAPPING = 2
    NAMER = 3


class Reporting(IntEnum):
    """What the probes report (``enum reporting``)."""

    STOPPED = 0
    LIVE = 1
    PAUSED = 2


class ForkFlag(IntFlag):
    """What the probes report on a forked process (``enum fork_flag``)."""

    SHARES = 1
    MARKED = 2


class SpillFlag(IntFlag):
    """What happened to the address of an entry in map ``spill`` (``enum spill_flag``)."""

    FREED = 1
    BORN = 2
    RESTORED = 4
    TAKEN = 8
    INNER = 16
