"""Layout of the call stacks sent to a worker: mappings, the stacks' heads, then their memory."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

from tracelloc.architecture import Architecture

CODE_DTYPE: Final = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("since", "<i8"), ("file", "<i8"), ("offset", "<u8")]
)
"""A mapping of code, by address: the generation since which it is known to be there, the
number of its file, and the offset in the file."""
GENERATED: Final = -1
"""In place of a file's number: code without a file."""
UNREADABLE: Final = -2
"""In place of a file's number: a file that can't be read."""


@cache
def miss_dtype(architecture: Architecture) -> np.dtype[Any]:
    """Returns the layout of a stack's head.

    That is: its registers, in the order of ``Architecture.miss_registers``, its generation, the
    address of its copied memory, a mask of missing pages, and how many bytes of it are sent.
    """
    return np.dtype([
        ("registers", "<u8", (len(architecture.miss_registers),)),
        ("generation", "<i8"),
        ("address", "<u8"),
        ("holes", "<u8"),
        ("size", "<i8"),
    ])  # fmt: skip
