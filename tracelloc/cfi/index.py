"""Which FDE covers an address: the binary search table of ``.eh_frame_hdr``.

Linux Standard Base Core 5.0, section 10.6.2. Where the table is missing or of no use,
the same is made by reading all entries once.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.cfi.encoding import CfiError, read_pointer
from tracelloc.cfi.entries import Entries

_MOST_FUNCTIONS: Final = 1 << 22
_USUAL_TABLE: Final = 0x3B
"""Pairs of signed 32-bit numbers, relative to the header."""


class Index:
    """The FDEs of one section by the address they start at."""

    def __init__(
        self, starts: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64], *, is_scanned: bool
    ) -> None:
        """``starts`` is sorted; ``offsets`` are relative to the section's start."""
        self.starts = starts
        self.offsets = offsets
        self.is_scanned = is_scanned
        """Whether the entries were read because there was no usable table."""
        self._starts = memoryview(starts.data)

    def __len__(self) -> int:
        return len(self.offsets)

    def find(self, address: int) -> int | None:
        """Where the last FDE that starts at or before an address is. It may end before it."""
        at = bisect_right(self._starts, address) - 1
        return int(self.offsets[at]) if at >= 0 else None


def read_header(header: bytes, address: int) -> tuple[int, int, int] | None:
    """What ``.eh_frame_hdr`` says: address of ``.eh_frame``, entries, offset of the table.

    ``address`` is the header's own. The number of entries is 0 where its table is missing
    or not of the kind that linkers write. None if it is no header.
    """
    if len(header) < 4 or header[0] != 1:
        return None
    try:
        place, at = read_pointer(header, 4, len(header), header[1], address, base=address)
        if header[3] != _USUAL_TABLE:
            return place, 0, at
        count, at = read_pointer(header, at, len(header), header[2], address, base=address)
    except CfiError:
        return None
    return place, count if count <= (len(header) - at) // 8 else 0, at


def make_index(entries: Entries, header: bytes, address: int) -> Index:
    """The index of ``.eh_frame``, from its header if that has a sorted table."""
    found = read_header(header, address)
    if found is not None and found[1]:
        _, count, at = found
        table = np.frombuffer(header, "<i4", 2 * count, at).astype(np.int64).reshape(count, 2)
        starts = table[:, 0] + address
        offsets = table[:, 1] + (address - entries.address)
        if starts[0] >= 0 and bool((starts[1:] >= starts[:-1]).all()):
            return Index(starts.astype(np.uint64), offsets, is_scanned=False)
    return scan(entries)


def scan(entries: Entries) -> Index:
    """The index made by reading all entries."""
    found = islice(entries.scan(), _MOST_FUNCTIONS)
    pairs = sorted((fde.address, offset) for offset, fde in found)
    starts = np.array([start for start, _ in pairs], np.uint64)
    offsets = np.array([offset for _, offset in pairs], np.int64)
    return Index(starts, offsets, is_scanned=True)
