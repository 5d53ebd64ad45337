"""Usable sizes: what an allocator gives for a requested size, computed or read.

Each formula maps requested sizes to what ``malloc_usable_size`` returns for such a block,
vectorized, in bytes, for 64-bit processors. (jemalloc's classes are the same with pages of 64 KiB,
as in Debian's builds for 64-bit Arm.) Formulas hold for blocks as malloc makes them. A block that
realloc has shrunk may keep its place (in mimalloc and tcmalloc, up to twice as much as it needs).
tcmalloc's realloc may add room, and so may an alignment. If there is no reliable formula, the size
is unknown:

* musl rounds to slots, and its ``malloc_usable_size`` returns the requested size;
* mimalloc beyond 128 KiB rounds differently from version to version, and its checking
  builds pad blocks; a tcmalloc that is not a separate library may have other pages.

Chunks of glibc's malloc can be read from the process. The eight bytes before a block hold its
chunk's size, a multiple of 16, and three flags (malloc/malloc.c, ``struct malloc_chunk``): 2, the
chunk is a separate mapping; 4, it is of another arena than the first; 1, the previous chunk is in
use. A block may be freed during the read, and another allocator's blocks have something else there:
sizes that do not fit the request are left out.
"""

import mmap
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

import numpy as np

from tracelloc.model.blocks import Blocks, Usable, UsableSizes
from tracelloc.model.codefiles import base_name, is_c_library
from tracelloc.model.figures import U64, Mask
from tracelloc.model.process import FoundLibrary, MainLibrary, MallocLibrary

PAGE_BYTES: Final = mmap.PAGESIZE  # The kernel's pages: glibc maps large blocks in whole ones


Formula = Callable[[U64], tuple[U64, Mask]]  # Requested sizes to (usable ones, which are known)

CHUNK_HEADER_BYTES: Final = 8  # The size field of a glibc chunk (a mapped one has 8 more)
SMALLEST_CHUNK: Final = 32  # MINSIZE in glibc's malloc/malloc.c
_MMAP_THRESHOLD: Final = 128 << 10  # glibc maps blocks from here on, or later (mallopt(3))

_TC_PAGE: Final = 8192
_TC_LEAST_SPAN: Final = max(_TC_PAGE, PAGE_BYTES)
_TC_LARGEST_SMALL: Final = 256 << 10
_TC_MOST_MOVED: Final = 32
_MI_LARGEST_BIN: Final = 128 << 10


LIBC_FAMILY: Final = "malloc"  # Name of the family of functions that the C library defines


def main_library(found: Iterable[FoundLibrary]) -> MainLibrary | None:
    """Returns the first file that defines malloc, in the order of symbol resolution.

    The C library comes last. If another library replaces its malloc, it is not among the others:
    nothing calls that malloc any more. None if no file defines malloc.
    """
    own = [(a, a.library) for a in found if a.library is not None]
    if not own:
        return None
    main, library = min(own, key=_precedence)
    others = {
        f"{a.family} in {base_name(a.file)}": None
        for a, whose in own
        if (whose, a.file) != (library, main.file)
        and not (a.family == LIBC_FAMILY and is_c_library(a.file))
    }
    return MainLibrary(library, main.file, tuple(others))


def _precedence(pair: tuple[FoundLibrary, MallocLibrary]) -> tuple[bool, bool, bool]:
    allocator, library = pair
    # Dynamic linkers have their own malloc for the time before the C library's.
    in_c_library = is_c_library(allocator.file)
    is_loaders = in_c_library and library is MallocLibrary.OTHER
    return allocator.family != LIBC_FAMILY, in_c_library, is_loaders


def formula_for(main: MainLibrary) -> Formula | None:
    """Returns the formula for a malloc library's usable sizes; None if no sizes are known."""
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


def has_sizes(sizes: UsableSizes) -> bool:
    """Whether any usable sizes can be known, by a formula or by reading."""
    return not sizes.unusual and formula_for(sizes.main) is not None


def usable_of(sizes: UsableSizes, blocks: Blocks) -> Usable:
    """Returns usable sizes of some of the snapshot's blocks, a row per block."""
    there, read = sizes.read.find(blocks)
    formula = None if sizes.unusual else formula_for(sizes.main)
    # With several allocators, only blocks whose size was read are certainly glibc's.
    is_mixed = sizes.main.library is MallocLibrary.GLIBC and bool(sizes.main.others)
    if formula is None or is_mixed:
        return Usable(read, there, there)
    computed, known = formula(blocks.size)
    return Usable(np.where(there, read, computed), there | known, there)


def header_bytes(main: MainLibrary) -> int:
    """Returns the least overhead in bytes of each block beside its usable bytes."""
    return CHUNK_HEADER_BYTES if main.library is MallocLibrary.GLIBC else 0


def glibc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Usable sizes in glibc: chunks are multiples of 16 bytes, 8 of them the header; at least 32.

    malloc/malloc.c: ``request2size``, and ``sysmalloc_mmap`` for separately mapped blocks. Sizes
    are certain if the threshold can't have moved: from 32 MiB on; below 128 KiB, none is mapped.
    In between, a block may be either. If the rest of a chunk would be less than 32 bytes, glibc
    gives it all, so blocks may have 16 more: ``chunks.read_chunks`` reads the true size.
    """
    chunk = chunk_bytes(size_bytes)
    mapped = _rounded(chunk + np.uint64(8), PAGE_BYTES)
    certain = size_bytes >= np.uint64(32 << 20)
    usable = np.where(certain, mapped - np.uint64(16), chunk - np.uint64(CHUNK_HEADER_BYTES))
    return usable, (chunk < np.uint64(_MMAP_THRESHOLD)) | certain


def chunk_bytes(size_bytes: U64) -> U64:
    """Returns the smallest chunk for a request: ``request2size`` in glibc's malloc/malloc.c."""
    rounded = _rounded(size_bytes + np.uint64(CHUNK_HEADER_BYTES), 16)
    return np.maximum(rounded, np.uint64(SMALLEST_CHUNK))


def jemalloc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Usable sizes in jemalloc: four classes per doubling, 16 bytes apart or more; also 8.
    jemalloc(3), "Size classes", of versions 4 and newer with the usual quantum of 16.
    """
    # A float64 may round values of more than 53 bits up: no block is that large.
    # The greatest power of two below each size; 0 for sizes up to 1.
    exponent = np.frexp(np.maximum(size_bytes, np.uint64(1)).astype(np.float64) - 0.5)[1]
    power: U64 = np.uint64(1) << np.maximum(exponent - 1, 0).astype(np.uint64)
    spacing = np.maximum(power >> np.uint64(2), np.uint64(16))
    usable = np.where(size_bytes <= np.uint64(8), np.uint64(8), _rounded(size_bytes, spacing))
    return usable, np.ones(len(size_bytes), np.bool_)


def mimalloc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Usable sizes in mimalloc: multiples of 16 up to 128, then four bins per doubling; also 8.
    mimalloc's src/page-queue.c, ``mi_bin``; the same in versions 1 to 3.
    """
    usable, _ = jemalloc_usable(size_bytes)
    return usable, size_bytes <= np.uint64(_MI_LARGEST_BIN)


def tcmalloc_usable(size_bytes: U64) -> tuple[U64, Mask]:
    """Usable sizes in tcmalloc: classes up to 256 KiB, then whole pages, of at least 8 KiB.
    gperftools' src/common.cc, ``SizeMap::Init``, as it is built by default.
    """
    classes = _tcmalloc_classes()
    small = size_bytes <= np.uint64(_TC_LARGEST_SMALL)
    at = np.searchsorted(classes, np.minimum(size_bytes, np.uint64(_TC_LARGEST_SMALL)))
    usable = np.where(small, classes[at], _rounded(size_bytes, _TC_LEAST_SPAN))
    return usable, np.ones(len(size_bytes), np.bool_)


@cache
def _tcmalloc_classes() -> U64:
    """Returns size classes at most an eighth apart, in spans that waste at most an eighth. If spans
    of two neighboring classes hold equally many blocks, they are one class, the larger.
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
    """Returns the bytes of the span of pages from which blocks of a size class are cut."""
    at_once = min(max((64 << 10) // size, 2), _TC_MOST_MOVED) // 4
    span = 0
    while span == 0 or span // size < at_once:
        span += _TC_LEAST_SPAN
        while span % size > span >> 3:
            span += _TC_LEAST_SPAN
    return span


def _rounded(size_bytes: U64, step: int | U64) -> U64:
    below = np.asarray(step, np.uint64) - np.uint64(1)
    rounded: U64 = (size_bytes + below) & ~below
    return rounded
