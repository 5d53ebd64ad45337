"""Layout of the call stacks sent to a worker: mappings, the stacks' heads, then their memory."""

from __future__ import annotations

from typing import Final

import numpy as np

CODE_DTYPE: Final = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("since", "<i8"), ("file", "<i8"), ("offset", "<u8")]
)
"""A mapping of code, by address: the generation since which it is known to be there, the
number of its file, and the offset in the file."""
GENERATED: Final = -1
"""In place of a file's number: code without a file."""
UNREADABLE: Final = -2
"""In place of a file's number: a file that can't be read."""
MISS_DTYPE: Final = np.dtype(
    [
        ("registers", "<u8", (8,)),
        ("generation", "<i8"),
        ("address", "<u8"),
        ("holes", "<u8"),
        ("size", "<i8"),
    ]
)
"""A stack's registers, in the order of ``enum miss_register``, its generation, the address of its
copied memory, a mask of missing pages, and how many bytes of it are sent."""
