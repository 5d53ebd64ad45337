"""Walks jemalloc's heap: all regions of all slabs, and large extents.

Format: jemalloc 5.2.1, 5.3.0 and 5.3.1, 64 bits with pages of 4 or 64 KiB: in
include/jemalloc/internal/, rtree.h, edata.h (extent_structs.h in 5.2), cache_bin.h. The page map is
a tree of tables by bits of an address, whose root is in the library's data. The machine on which
jemalloc was built decides which tree it is:

- 48 bits: a table by bits 30 to 47 leads to tables by bits 12 to 29; with pages of 64 KiB, by 32 to
  47 and 16 to 31. A word there: bits 48 to 63 the size class, 6 to 47 the address of the extent's
  description, bit 0 slab.
- 57 bits (with five levels of page tables): tables by bits 42 to 56, 27 to 41 and 12 to 26. Two
  words there: the address of the description; the size class above bit 5.

The page map proves itself: a description tells the address under which the map leads to it. Other
versions differ and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.errors import TargetError
from tracelloc.model.figures import I64
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import (
    ADDRESS_BITS,
    Arena,
    BlockState,
    NotWalkableError,
    WalkedHeap,
    joined,
)
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.libraryfiles import find_library, is_named, refusal, search_file
from tracelloc.record.heapwalk.pagemaps import PageMap, PageTree, find_page_map, may_lead_on
from tracelloc.record.heapwalk.pieces import AddressRuns, PieceReader
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.regions import Region

_NAME: Final = "jemalloc"
_DESCRIPTION_BYTES: Final = 64  # Without the bitmap
_OWN_UNIT_BYTES: Final = 2 << 20
_MOST_OWN_BYTES: Final = 1 << 30  # Bytes of one block of jemalloc's own memory, at most
_LEAST_REGION_BYTES: Final = 8
_NO_CLASS: Final = 232  # Number of size classes (`SC_NSIZES`)
_DIRTY: Final = (1, 2)  # States of extents that are free, but may be resident: dirty, muzzy
_LEAST_SHARE: Final = 0.99
_CACHE_SLOTS: Final = 2048
_BIN_WORDS: Final = 3  # Words of a cache's bin
_SCAN_BYTES: Final = 4 << 20
# What `mallctl("version")` returns.
_VERSION: Final = re.compile(rb"\0([1-9]\d*\.\d+\.\d+)-\d+-g[0-9a-f]{40}\0")
_MESSAGE_START: Final = b"<jemalloc>"  # Begins what each jemalloc prints


_LOW_BITS: Final = np.uint64(0xFFFFFFFF)


def _extents(page_bits: int) -> Callable[[U64], tuple[U64, U64]]:
    return lambda heads: (heads[:, 1], heads[:, 2] >> np.uint64(page_bits))


def _low_bits(rows: U64) -> U64:
    return rows[:, 0] & np.uint64((1 << 48) - 64)


_TREES: Final = (  # Pages are not the kernel's: Debian's jemalloc has 64 KiB on 64-bit Arm.
    PageTree(12, 18, 2, _low_bits, _extents(12)),
    PageTree(12, 15, 3, lambda rows: rows[:, 0], _extents(12), leaf_words=2),
    PageTree(16, 16, 2, _low_bits, _extents(16)),
)


class _Layout(NamedTuple):
    """Where an extent's description has its fields: the lowest bit of each in the first word."""

    state: int
    most_state: int
    size_class: int
    free_count: int
    counts_cached: bool  # Whether caches have lengths, as numbers (`cache_bin_t` of 5.2)


_LAYOUTS: Final = _Layout(17, 7, 20, 28, False), _Layout(16, 3, 18, 26, True)


def _classes(entries: U64) -> I64:
    if entries.shape[1] == 1:
        return (entries[:, 0] >> np.uint64(48)).astype(np.int64)
    return ((entries[:, 1] & _LOW_BITS) >> np.uint64(5)).astype(np.int64)


_DOUBLINGS: Final = [(4 + n) << bits - 2 for bits in range(6, 50) for n in (1, 2, 3, 4)]
# Bytes of each size class: these, then four for each doubling, then none up to the largest number
_SIZES: Final = np.array([8, 16, 32, 48, 64, *_DOUBLINGS, *[0] * 256], np.int64)[:256]


def walk_jemalloc(reader: PieceReader, tally: ClassTally) -> WalkedHeap | None:
    """Walks jemalloc's heap; returns None without a page map. Other layouts: NotWalkableError."""
    regions = reader.regions()
    numbers = find_library(reader.memory.process, regions, _NAME, _MESSAGE_START)
    pages = find_page_map(reader, regions, numbers, _TREES)
    ways = [_Extents(reader, pages, layout) for layout in _LAYOUTS] if pages else []
    extents = next((way for way in ways if way.are_sound), None)
    if extents is None:
        named = next((r for r in regions if is_named(r, _NAME)), None)
        if named or pages:
            raise refusal(f"{_NAME}{_version(reader, named) if named else ''}", named)
        return None
    entries = extents.entries()
    stacks, changed = _mark_cached(reader, regions, entries, extents.layout)
    tally.add_entries(reader.memory, entries)
    arena = Arena("all arenas", MallocLibrary.JEMALLOC, 0).add(entries)
    arena.system_bytes = arena.seen_bytes
    for count, kind in ((extents.changed, "extents"), (changed, "thread caches")):
        if count:
            arena.unseen.append(f"{count:,} {kind} that changed while they were read")
    # Descriptions lead to the first block of each extent, arenas to where extents were, and caches
    # still to what they handed out.
    metadata = [(r.start, r.end) for r in regions if is_named(r, _NAME)] + stacks
    metadata += [(at, at + extents.rows.shape[1] * 8) for at in extents.addresses.tolist()]
    metadata += _own_memory(reader, regions, extents.addresses)
    return WalkedHeap([arena], metadata)


def _own_memory(reader: PieceReader, regions: list[Region], inside: U64) -> list[tuple[int, int]]:
    """Returns (start, end) of jemalloc's own memory around the addresses ``inside``.

    A block of such memory (``base_block_t``) is a multiple of 2 MiB, and begins with its size and
    the address of another one, or 0.
    """
    found: list[tuple[int, int]] = []
    starts = np.array([region.start for region in regions], np.uint64)
    for unit in np.unique(inside & np.uint64(-_OWN_UNIT_BYTES & (1 << 64) - 1)).tolist():
        region = regions[max(0, int(np.searchsorted(starts, np.uint64(unit), side="right")) - 1)]
        lowest = max(region.start, unit - _MOST_OWN_BYTES)
        for start in range(unit, lowest - 1, -_OWN_UNIT_BYTES):
            if found and start < found[-1][1]:
                break
            size_bytes, following = reader.words(start, 16).tolist()
            if (size_bytes | following) % _OWN_UNIT_BYTES == 0 and size_bytes > unit - start:
                found.append((start, min(start + size_bytes, region.end)))
                break
    return found


def _version(reader: PieceReader, region: Region) -> str:
    """Returns the version that a mapping's file states, after a space; empty if it states none."""
    process = reader.memory.process
    mapping = process.maps().find(region.start)
    if mapping is None:
        return ""
    try:
        found = search_file(process, mapping, _VERSION)
    except (OSError, TargetError):
        return ""
    return f" {found[1].decode()}" if found else ""


class _Extents:
    def __init__(self, reader: PieceReader, found: PageMap, layout: _Layout) -> None:
        pages, classes = found.pages, _classes(found.entries)
        self.addresses, back = np.unique(found.leads_to, return_inverse=True)
        self.page_bytes = 1 << found.page_bits
        self.most_regions = self.page_bytes // _LEAST_REGION_BYTES
        size_bytes = _DESCRIPTION_BYTES + self.most_regions // 8
        self.rows, _ = reader.memory.read(self.addresses, size_bytes)
        self.layout, bits = layout, self.rows[:, 0]
        page = ~np.uint64(self.page_bytes - 1)
        self.base, self.size_bytes = self.rows[:, 1] & page, self.rows[:, 2] & page
        self.size_class = ((bits >> np.uint64(layout.size_class)) & np.uint64(255)).astype(np.int64)
        mask = np.uint64(2 * self.most_regions - 1)
        self.free_count = (bits >> np.uint64(layout.free_count) & mask).astype(np.int64)
        self.state = (bits >> np.uint64(layout.state)) & np.uint64(layout.most_state)
        end = np.uint64(reader.address_end)
        exists = (self.base != 0) & (self.base < end) & (self.size_bytes != 0)
        exists &= self.size_bytes <= end - np.minimum(self.base, end)
        self.is_kept = exists & np.isin(self.state, np.array(_DIRTY, np.uint64))
        active = exists & (self.state == 0)
        inside = (pages >= self.base[back]) & (pages - self.base[back] < self.size_bytes[back])
        same = (classes == self.size_class[back])[active[back] & (pages == self.base[back])]
        self.are_sound = (
            same.size > 0
            and same.mean() >= _LEAST_SHARE
            and inside[active[back]].mean() >= _LEAST_SHARE
        )
        """Whether descriptions and page map agree: else it is another version."""
        is_odd = ~exists[back] | active[back] & (classes != self.size_class[back])
        if layout.counts_cached:  # In 5.2, what is free has no class.
            is_classed = self.size_class < _NO_CLASS
            is_odd |= (((self.state == 0) != is_classed) | (self.size_class > _NO_CLASS))[back]
        else:  # From 5.3 on, the page map has the state, too.
            is_odd |= found.entries[:, -1] >> np.uint64(2) & np.uint64(7) != self.state[back]
        is_first = pages == self.base[back]
        has_first = np.bincount(back, is_first, len(self.base)) > 0
        self.changed = int(np.count_nonzero(is_odd & is_first) + np.count_nonzero(~has_first))
        """How many descriptions do not agree with the page map, or with themselves."""
        self.is_slab = active & ((bits >> np.uint64(12)) & np.uint64(1) == 1)
        self.is_large = active & ~self.is_slab

    def entries(self) -> U64:
        slabs = np.flatnonzero(self.is_slab)
        sizes = _SIZES[self.size_class[slabs]]
        counts = np.minimum(self.size_bytes[slabs].astype(np.int64) // np.maximum(sizes, 1),
                            self.most_regions)  # fmt: skip
        is_free = self._bitmaps(slabs, counts)
        row = np.repeat(np.arange(len(slabs)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = self.base[slabs][row] + (number * sizes[row]).astype(np.uint64)
        states = np.where(is_free[row, number], BlockState.FREE, BlockState.IN_USE)
        large, kept = np.flatnonzero(self.is_large), np.flatnonzero(self.is_kept)
        # From 5.3.1 on, they need not be of a class. Most begin anywhere in their first page, for
        # which each has one page more.
        is_padded = bool(np.any(self.rows[large, 1] & np.uint64(self.page_bytes - 1)))
        room = self.size_bytes[large] - np.uint64(self.page_bytes * is_padded)
        large_sizes = np.minimum(_SIZES[self.size_class[large]].astype(np.uint64), room)
        end = np.uint64(BlockState.END)
        entries = np.concatenate([
            starts | states.astype(np.uint64),
            (self.base[slabs] + (counts * sizes).astype(np.uint64)) | end,
            self.rows[large, 1] & ADDRESS_BITS | np.uint64(BlockState.IN_USE),
            ((self.rows[large, 1] & ADDRESS_BITS) + large_sizes) | end,
            self.base[kept] | np.uint64(BlockState.FREE),
            (self.base[kept] + self.size_bytes[kept]) | end,
        ])  # fmt: skip
        return joined(entries)

    def _bitmaps(self, slabs: npt.NDArray[np.intp], counts: I64) -> Mask:
        """Returns a mask of the slabs' free regions, from the bitmap that fits the free count."""
        inside = np.arange(self.most_regions) < counts[:, None]
        best, agreeing = np.zeros(inside.shape, np.bool_), -1
        for offset in range(24, 72, 8):
            words = self.rows[slabs, offset // 8 : offset // 8 + self.most_regions // 64]
            bits = np.unpackbits(
                np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little"
            ).astype(np.bool_)
            bits &= inside
            agree = int(np.count_nonzero(bits.sum(axis=1) == self.free_count[slabs]))
            if agree > agreeing:
                best, agreeing = bits, agree
        if agreeing < (2 * _LEAST_SHARE - 1) * len(slabs):
            raise NotWalkableError(
                f"{len(slabs) - agreeing} of {len(slabs)} of jemalloc's bitmaps and counts differ",
                hint="it has another layout, or the process is too busy: try again",
            )
        self.changed += len(slabs) - max(agreeing, 0)
        return best


def _mark_cached(
    reader: PieceReader, regions: list[Region], entries: U64, layout: _Layout
) -> tuple[list[tuple[int, int]], int]:
    """Marks regions in caches as free; returns their stacks, and how many are of no one size."""
    stacks: list[tuple[int, int]] = []
    changed = 0
    read_bins = _counted_bins if layout.counts_cached else _bins
    for region in regions:
        if region.inode or region.rights[:2] != "rw" or region.path.startswith("["):
            continue
        resident = AddressRuns.read_resident(reader.memory, [(region.start, region.end)])
        for first, last in zip(resident.starts.tolist(), resident.ends.tolist(), strict=True):
            for at in range(first, last, _SCAN_BYTES):
                words = reader.words(at, min(_SCAN_BYTES + 16, last - at))
                if len(words) < 3:
                    continue
                head, left, span, good = read_bins(words)
                good &= may_lead_on(head, reader) & (head & np.uint64(7) == 0)
                sure = set()
                for n in np.flatnonzero(good & (left > 0)).tolist():
                    if _mark_stack(entries, reader.words(int(head[n]), int(left[n]))):
                        sure.add(n)
                for n in _with_neighbors(sure, good):
                    changed += n not in sure and int(left[n]) > 0
                    end = int(head[n]) + int(left[n])
                    stacks.append((end - int(span[n]), end))
    return stacks, changed


def _bins(words: U64) -> tuple[U64, U64, U64, Mask]:
    """Reads words as bins of caches: heads of their stacks, bytes left and in all, a mask.

    A bin (``cache_bin_t``) is 24 bytes: the head of its stack, statistics, the lowest 16 bits of
    the stack's low-water mark, its full and its empty end; from 5.3.1 on, the number of words in
    the stack.
    """
    low16 = np.uint64(0xFFFF)
    head, ends = words[:-2], words[2:]
    full, empty = (ends >> np.uint64(16)) & low16, (ends >> np.uint64(32)) & low16
    span, left = (empty - full) & low16, (empty - (head & low16)) & low16
    room = ends >> np.uint64(48)
    good = (room == 0) | (room == span >> np.uint64(3))
    good &= (span > 0) & (span <= 8 * _CACHE_SLOTS)
    good &= (left <= span) & ((span | left) & np.uint64(7) == 0)
    good &= ((empty - (ends & low16)) & low16) <= left
    return head, left, span, good


def _counted_bins(words: U64) -> tuple[U64, U64, U64, Mask]:
    """Reads words as bins of caches of 5.2; returns what ``_bins`` does.

    A bin has a low-water mark and the number of words, statistics, and the stack's end. Stacks of
    neighboring bins follow each other.
    """
    counts, ends = words[:-2] >> np.uint64(32), words[2:]
    low = words[:-2].astype(np.uint32).view(np.int32)
    good = (counts <= _CACHE_SLOTS) & (low >= -1) & (low <= counts.astype(np.int64))
    room = ends.copy()
    room[_BIN_WORDS:] -= ends[:-_BIN_WORDS]
    follows = good & (room > 0) & (room <= 8 * _CACHE_SLOTS) & (room & np.uint64(7) == 0)
    follows[_BIN_WORDS:] &= good[:-_BIN_WORDS]
    is_followed = np.zeros(len(good), np.bool_)
    is_followed[:-_BIN_WORDS] = follows[_BIN_WORDS:]
    left = counts * np.uint64(8)
    return ends - left, left, np.where(follows, room, left), good & (follows | is_followed)


def _with_neighbors(sure: set[int], good: Mask) -> set[int]:
    """Returns known bins and all bins beside them, which may be empty now."""
    found = set(sure)
    for step in (-_BIN_WORDS, _BIN_WORDS):
        for n in sure:
            at = n + step
            while 0 <= at < len(good) and at not in found and good[at]:
                found.add(at)
                at += step
    return found


def _mark_stack(entries: U64, stack: U64) -> bool:
    """Marks the regions in one cache, if all have one size. Returns whether they have."""
    wanted = stack | np.uint64(BlockState.IN_USE)
    at = np.searchsorted(entries, wanted)
    if (at >= len(entries) - 1).any() or (entries[at] != wanted).any():
        return False
    is_cache = len(np.unique((entries[at + 1] & ADDRESS_BITS) - stack)) == 1
    if is_cache:
        entries[at] = stack | np.uint64(BlockState.CACHED)
    return is_cache
