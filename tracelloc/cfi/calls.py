"""Where code calls: the return addresses of a file, found by the shape of call instructions.

Code is not disassembled: what looks like a call is taken for one, so some of what is
found is the middle of another instruction, or data. Nothing real is missed, except
calls with a prefix inside the operand (there are none).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

LONGEST: Final = 7
"""Bytes of the longest call instruction, prefixes apart."""


def _make_lengths() -> U8:
    """Length of ``ff /2`` by its ModRM byte; 0 where the byte makes another instruction.

    Intel SDM volume 2, tables 2-2 and 2-3. A SIB byte with base 101 makes it 4 longer.
    """
    lengths = np.zeros(256, np.uint8)
    for modrm in range(256):
        mode, operand = modrm >> 6, modrm & 7
        if modrm >> 3 & 7 != 2:
            continue
        length = 2 + (0, 1, 4, 0)[mode]
        if mode != 3 and operand == 4:
            length += 1
        if mode == 0 and operand == 5:
            length += 4
        lengths[modrm] = length
    return lengths


_LENGTHS: Final = _make_lengths()


def find_calls(code: bytes, address: int, start: int, end: int) -> U64:
    """Address of the last byte of everything that looks like a call in a piece of code.

    ``address`` is the code's own. Direct calls count only if they lead to addresses from
    ``start`` up to ``end``. The result is sorted.
    """
    if len(code) < LONGEST:
        return np.empty(0, np.uint64)
    data = np.frombuffer(code, np.uint8)
    direct = np.flatnonzero(data[:-4] == 0xE8)
    words = np.ndarray(len(code) - 3, "<i4", code, strides=(1,))
    targets = words[direct + 1].astype(np.int64) + direct + (address + 5)
    direct = direct[(targets >= start) & (targets < end)] + 4
    indirect = np.flatnonzero(data[:-2] == 0xFF)
    indirect = indirect[_LENGTHS[data[indirect + 1]] > 0]
    modrm = data[indirect + 1]
    length = _LENGTHS[modrm].astype(np.int64)
    has_wide_base = (modrm >> 6 == 0) & (modrm & 7 == 4) & (data[indirect + 2] & 7 == 5)
    length += np.where(has_wide_base, 4, 0)
    indirect = (indirect + length - 1)[indirect + length <= len(data)]
    found = np.concatenate([direct, indirect])
    found.sort()
    return (found + address).astype(np.uint64)
