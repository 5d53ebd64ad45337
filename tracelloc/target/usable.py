"""Usable sizes: what an allocator gives for what was asked of it, computed or read.

Each formula maps requested sizes to what ``malloc_usable_size`` says of such a block,
vectorised, in bytes, for x86-64. They hold for blocks as malloc makes them: one that
realloc has made smaller may keep its place (in mimalloc and tcmalloc, up to twice as much as
it needs), tcmalloc's realloc may make room for more, and so may an alignment. Where there is
no sure formula a size is not known:

* musl rounds to slots, and its ``malloc_usable_size`` says what was asked for;
* mimalloc beyond 128 KiB rounds differently from version to version, and its checking
  builds pad blocks; a tcmalloc that is not a library of its own may have other pages.

Chunks of glibc's malloc can be read from the process. The eight bytes before a block hold its
chunk's size, a multiple of 16, and three flags
(malloc/malloc.c, ``struct malloc_chunk``): 2, the chunk is a mapping of its own; 4, it is
of another arena than the first; 1, the chunk before it is in use. Blocks may be freed
while we look, and another allocator's have something else there: what does not fit the
request is left out.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.syscalls import read_process
from tracelloc.target.found import MainLibrary, MallocLibrary
from tracelloc.target.procfs import base_name

Rows = npt.NDArray[np.intp]

_PAGE_BYTES: Final = 4096
_NEAR_BYTES: Final = 1024
"""Words at most this far apart are read together: copying that much takes as long as going
to another place."""
_WINDOW_BITS: Final = 16
"""Nothing is read beyond the next 64 KiB, so that what is read at once has a bound."""
_MOST_PIECES: Final = 1024
"""UIO_MAXIOV, include/uapi/linux/uio.h."""
_MOST_FAILURES: Final = 4096
"""Places that can't be read, after which nothing more is tried: each costs a system call."""
_MAPPED: Final = 2
_FLAGS: Final = 7
_MOST_PADDING: Final = 64 << 20
"""Beyond the request, in a mapping: the largest alignment that is believed."""


def read_chunks(pid: int, address: U64, size_bytes: U64, end_s: float) -> tuple[U64, Mask]:
    """(usable bytes, which of them were read) of blocks, addresses ascending.

    ``end_s``: when to stop, on ``time.monotonic()``; the rest stays unread.
    """
    usable = np.zeros(len(address), np.uint64)
    possible = np.flatnonzero((address & np.uint64(15)) == 0)
    words, was_read = read_words(pid, address[possible] - np.uint64(CHUNK_HEADER_BYTES), end_s)
    chunk = words & ~np.uint64(_FLAGS)
    least = chunk_bytes(size_bytes[possible])
    mapped = (words & np.uint64(_MAPPED)) != 0
    end = address[possible] - np.uint64(2 * CHUNK_HEADER_BYTES) + chunk
    slack = np.where(mapped, np.uint64(_MOST_PADDING), np.uint64(SMALLEST_CHUNK))
    fits = was_read & (chunk & np.uint64(15) == 0) & (chunk >= least) & (chunk - least <= slack)
    fits &= ~mapped | ((end & np.uint64(_PAGE_BYTES - 1)) == 0)
    headers = np.where(mapped, np.uint64(16), np.uint64(CHUNK_HEADER_BYTES))
    usable[possible] = chunk - headers
    known = np.zeros(len(address), np.bool_)
    known[possible] = fits
    return usable, known


def read_words(pid: int, address: U64, end_s: float) -> tuple[U64, Mask]:
    """(words of 8 bytes, which of them could be read); addresses ascending, multiples of 8."""
    words, was_read = _read_near(pid, address, _NEAR_BYTES, end_s)
    missing = np.flatnonzero(~was_read)
    if len(missing):
        # Something between two words may be gone while they are not.
        words[missing], was_read[missing] = _read_near(pid, address[missing], 0, end_s)
    return words, was_read


def _read_near(pid: int, address: U64, near_bytes: int, end_s: float) -> tuple[U64, Mask]:
    words = np.zeros(len(address), np.uint64)
    was_read = np.zeros(len(address), np.bool_)
    first, last = _pieces(address, near_bytes)
    pieces = np.empty((len(first), 2), np.uint64)
    pieces[:, 0] = address[first]
    pieces[:, 1] = address[last] - address[first] + np.uint64(8)
    at = failures = 0
    while at < len(pieces) and failures < _MOST_FAILURES and time.monotonic() < end_s:
        batch = pieces[at : at + _MOST_PIECES]
        ends = np.cumsum(batch[:, 1])
        buffer = np.empty(int(ends[-1]) // 8, np.uint64)
        try:
            size_bytes = read_process(pid, batch, buffer)
        except OSError as error:
            if error.errno != errno.EFAULT:  # it has ended, or we may not
                break
            size_bytes = 0
        whole = int(np.searchsorted(ends, np.uint64(size_bytes), side="right"))
        if whole:
            rows = slice(first[at], last[at + whole - 1] + 1)
            lengths = last[at : at + whole] - first[at : at + whole] + 1
            shift = np.repeat((ends - batch[:, 1] - batch[:, 0])[:whole], lengths)
            words[rows] = buffer[(address[rows] + shift) >> np.uint64(3)]
            was_read[rows] = True
        at += whole
        if whole < len(batch):
            at += 1
            failures += 1
    return words, was_read


def _pieces(address: U64, near_bytes: int) -> tuple[Rows, Rows]:
    """(first, last) rows of what is read together."""
    if not len(address):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    apart = np.diff(address) > np.uint64(near_bytes)
    apart |= np.diff(address >> np.uint64(_WINDOW_BITS)) != 0
    begins = np.flatnonzero(apart) + 1
    return np.concatenate([[0], begins]), np.concatenate([begins, [len(address)]]) - 1


U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Formula = Callable[[U64], tuple[U64, Mask]]
"""Requested sizes to (usable sizes, which of them are known), in bytes."""

CHUNK_HEADER_BYTES: Final = 8
"""What a chunk of glibc's has beside the usable bytes: its size (a mapped one, 8 more)."""
SMALLEST_CHUNK: Final = 32
"""MINSIZE in glibc's malloc/malloc.c."""
_MMAP_THRESHOLD: Final = 128 << 10
"""Where glibc begins to map blocks; it rises when such a block is freed (mallopt(3))."""

_TC_PAGE: Final = 8192
_TC_LARGEST_SMALL: Final = 256 << 10
_TC_MOST_MOVED: Final = 32
_MI_LARGEST_BIN: Final = 128 << 10


def formula_for(main: MainLibrary) -> Formula | None:
    """The formula of an allocator; None: no size is known."""
    name = base_name(main.file)
    match main.library:
        case MallocLibrary.GLIBC:
            return glibc_usable
        case MallocLibrary.JEMALLOC:
            return jemalloc_usable
        case MallocLibrary.TCMALLOC if name.startswith("libtcmalloc") and "debug" not in name:
            return tcmalloc_usable
        case MallocLibrary.MIMALLOC if name.startswith("libmimalloc.so"):
            return mimalloc_usable
    return None


def header_bytes(main: MainLibrary) -> int:
    """What each block takes beside its usable bytes, at least."""
    return CHUNK_HEADER_BYTES if main.library is MallocLibrary.GLIBC else 0


def glibc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Chunks of 16 bytes, of which 8 are the header; at least 32.

    malloc/malloc.c: ``request2size``, and ``sysmalloc_mmap`` for blocks of their own, which
    are known where the threshold has not moved: from 32 MiB on, and below 128 KiB; between
    them a block may be either. A chunk whose rest would be less than 32 bytes is given
    whole, so blocks may have 16 more: ``chunks.read_chunks`` sees the truth.
    """
    chunk = chunk_bytes(size_bytes)
    mapped = _rounded(chunk + np.uint64(8), _PAGE_BYTES)
    certain = size_bytes >= np.uint64(32 << 20)
    usable = np.where(certain, mapped - np.uint64(16), chunk - np.uint64(CHUNK_HEADER_BYTES))
    return usable, (chunk < np.uint64(_MMAP_THRESHOLD)) | certain


def chunk_bytes(size_bytes: U64) -> U64:
    """The least chunk for a request: ``request2size`` in glibc's malloc/malloc.c."""
    rounded = _rounded(size_bytes + np.uint64(CHUNK_HEADER_BYTES), 16)
    return np.maximum(rounded, np.uint64(SMALLEST_CHUNK))


def jemalloc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Four classes per doubling, at least 16 bytes apart; 8 is one, too.

    jemalloc(3), "Size classes", of versions 4 and newer with the usual quantum of 16.
    """
    spacing = np.maximum(_power_below(size_bytes) >> np.uint64(2), np.uint64(16))
    usable = np.where(size_bytes <= np.uint64(8), np.uint64(8), _rounded(size_bytes, spacing))
    return usable, np.ones(len(size_bytes), np.bool_)


def mimalloc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Multiples of 16 bytes up to 128, then four bins per doubling; 8 is one, too.

    mimalloc's src/page-queue.c, ``mi_bin``; the same in versions 1 to 3.
    """
    usable, _ = jemalloc_usable(size_bytes)
    return usable, size_bytes <= np.uint64(_MI_LARGEST_BIN)


def tcmalloc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Classes up to 256 KiB, whole pages of 8 KiB beyond.

    gperftools' src/common.cc, ``SizeMap::Init``, as it is built by default.
    """
    classes = _tcmalloc_classes()
    small = size_bytes <= np.uint64(_TC_LARGEST_SMALL)
    at = np.searchsorted(classes, np.minimum(size_bytes, np.uint64(_TC_LARGEST_SMALL)))
    usable = np.where(small, classes[at], _rounded(size_bytes, _TC_PAGE))
    return usable, np.ones(len(size_bytes), np.bool_)


@cache
def _tcmalloc_classes() -> U64:
    """Sizes at most an eighth apart, where a span of them wastes at most an eighth.

    Two neighbours of which a span holds equally many are one class, the larger.
    """
    classes: list[int] = []
    spans: list[tuple[int, int]] = []
    size = 8
    while size <= _TC_LARGEST_SMALL:
        span = _tcmalloc_span(size)
        shape = span, span // size
        if spans and spans[-1] == shape:
            classes[-1] = size
        else:
            classes.append(size)
            spans.append(shape)
        size += _tcmalloc_spacing(size)
    return np.array(classes, np.uint64)


def _tcmalloc_spacing(size: int) -> int:
    if size >= 128:
        return min(1 << size.bit_length() - 4, _TC_PAGE)
    return 16 if size >= 16 else 8


def _tcmalloc_span(size: int) -> int:
    """Bytes of the pages that blocks of a class are cut from."""
    at_once = min(max((64 << 10) // size, 2), _TC_MOST_MOVED) // 4
    span = 0
    while span == 0 or span // size < at_once:
        span += _TC_PAGE
        while span % size > span >> 3:
            span += _TC_PAGE
    return span


def _power_below(size_bytes: U64) -> U64:
    """The greatest power of two below each size; 0 for sizes up to 1."""
    # A float64 may round what has more than 53 bits up: those are no sizes of blocks.
    exponent = np.frexp(np.maximum(size_bytes, np.uint64(1)).astype(np.float64) - 0.5)[1]
    power: U64 = np.uint64(1) << np.maximum(exponent - 1, 0).astype(np.uint64)
    return power


def _rounded(size_bytes: U64, step: int | U64) -> U64:
    """Up to a multiple of a power of two."""
    below = np.asarray(step, np.uint64) - np.uint64(1)
    rounded: U64 = (size_bytes + below) & ~below
    return rounded
