"""Which pages of some addresses a process has: in memory, or swapped out.

From ``/proc/PID/pagemap``: 64 bits per page, of which bit 63 says that it is in memory and
bit 62 that it is swapped out (Linux, Documentation/admin-guide/mm/pagemap.rst).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import Final

import numpy as np

from tracelloc.target.procfs import Process

_ENTRY_BYTES: Final = 8
_KEPT_SHIFT: Final = np.uint64(62)
_CHUNK: Final = 1 << 16
"""Pages read at a time."""
MOST_PAGES: Final = 1 << 22
"""Pages looked at in all: 16 GiB of addresses, some 20 ms. What is reserved but hardly used
may be larger by far."""


def kept_bytes(process: Process, ranges: Iterable[tuple[int, int]]) -> int | None:
    """Of these ranges (first address, end; whole pages), the bytes that are kept.

    Small ranges count first; those after ``MOST_PAGES`` are left out, so it is a lower bound
    then. None if the process has ended or must not be looked at.
    """
    pages, left = 0, MOST_PAGES
    try:
        fd = os.open(process.memory_directory / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, end in sorted(ranges, key=lambda each: each[1] - each[0]):
                first, last = start // mmap.PAGESIZE, end // mmap.PAGESIZE
                last = min(last, first + left)
                left -= last - first
                pages += _kept_pages(fd, first, last)
        finally:
            os.close(fd)
    except OSError:
        return None
    return pages * mmap.PAGESIZE


def _kept_pages(fd: int, first: int, last: int) -> int:
    kept = 0
    for page in range(first, last, _CHUNK):
        count = min(_CHUNK, last - page)
        words = os.pread(fd, count * _ENTRY_BYTES, page * _ENTRY_BYTES)
        whole = len(words) // _ENTRY_BYTES
        entries = np.frombuffer(words, np.uint64, whole)
        kept += int(np.count_nonzero(entries >> _KEPT_SHIFT))
    return kept
