"""How call stacks are sent to a worker: what is mapped, the stacks' heads, then their memory."""

from __future__ import annotations

from typing import Final

import numpy as np

CODE_DTYPE: Final = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("since", "<i8"), ("file", "<i8"), ("offset", "<u8")]
)
"""A mapping of code, by address: the generation from which on it is known to have been there, the
number of its file, and the offset in that."""
GENERATED: Final = -1
"""In the place of a file: code of none."""
UNREADABLE: Final = -2
"""A file that can't be read."""
MISS_DTYPE: Final = np.dtype(
    [
        ("registers", "<u8", (8,)),
        ("generation", "<i8"),
        ("address", "<u8"),
        ("holes", "<u8"),
        ("size", "<i8"),
    ]
)
"""A stack's registers, in the order of ``enum miss_register``, the generation that it is of, and
where its copied memory was, without which pages, and how many bytes of it are sent."""
