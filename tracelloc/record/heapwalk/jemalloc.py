"""Walks jemalloc's heap: all regions of all slabs, and large extents.

Format: jemalloc 5.3.0, 64 bits with pages of 4 KiB: include/jemalloc/internal/rtree.h, edata.h,
cache_bin.h. The page map is a table of 2^18 words in the library's data, by bits 30 to 47 of an
address, whose entries lead to tables by bits 12 to 29. A word there: bits 48 to 63 the size
class, 7 to 47 the address of the extent's description, bit 0 slab. It proves itself: entry j leads
to a description whose address has j in bits 12 to 29. Other versions differ and are refused.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.codefiles import base_name
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader, Region, ResidentRuns
from tracelloc.record.heapwalk.walked import (
    ADDRESS_BITS,
    Arena,
    BlockState,
    NotWalkableError,
    WalkedHeap,
)
from tracelloc.record.process.memory import PAGE_BYTES, U64

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_ENTRIES: Final = 1 << 18
_LEAF_BYTES: Final = 8 * _ENTRIES
_MOST_TRIED: Final = 256
"""Addresses that may be tables of the second kind, in one file's data."""
_MOST_DATA_BYTES: Final = 64 << 20
_DESCRIPTION_BYTES: Final = 128
_SLAB_REGIONS: Final = 512
_DIRTY: Final = (1, 2)
"""States of extents that are free, but may be resident: dirty, muzzy."""
_LEAST_SHARE: Final = 0.99
_CACHE_SLOTS: Final = 2048
_BIN_WORDS: Final = 3
"""Words of a cache's bin."""
_SCAN_BYTES: Final = 4 << 20


def _size_classes() -> I64:
    """Bytes of each size class: 8, 16, 32, 48, 64, then four for each doubling."""
    sizes = [8, 16, 32, 48, 64]
    base = 64
    while base < 1 << 50:
        sizes += [base + base // 4 * quarter for quarter in (1, 2, 3, 4)]
        base *= 2
    return np.array(sizes + [0] * 64, np.int64)


_SIZES: Final = _size_classes()


def walk_jemalloc(reader: PieceReader, tally: ClassTally) -> WalkedHeap | None:
    """Walks the heap; None if there is no page map. Raises NotWalkableError for other layouts.

    Raises OSError, TargetError and PrivilegeError as well.
    """
    regions = reader.regions()
    leaves = _find_leaves(reader, regions)
    if not leaves:
        return None
    pages, leads_to, classes = [], [], []
    for key, leaf in leaves:
        at = np.flatnonzero(leaf)
        pages.append(np.uint64(key << 30) + (at.astype(np.uint64) << np.uint64(12)))
        leads_to.append(leaf[at] & np.uint64((1 << 48) - 128))
        classes.append((leaf[at] >> np.uint64(48)).astype(np.int64))
    extents = _Extents(reader, np.concatenate(pages), np.concatenate(leads_to),
                       np.concatenate(classes))  # fmt: skip
    entries = extents.entries()
    stacks = _mark_cached(reader, regions, entries)
    used = np.flatnonzero(entries & np.uint64(7) == BlockState.IN_USE)
    addresses = entries & ADDRESS_BITS
    for some in np.array_split(used, max(1, len(used) >> 16)):
        firsts, was_read = reader.memory.read(addresses[some], 8)
        good = was_read & tally.are_tables(firsts[:, 0])
        sizes = addresses[some + 1] - addresses[some]
        tally.add(firsts[good, 0], sizes[good], addresses[some][good])
    arena = Arena("all arenas", MallocLibrary.JEMALLOC, entries, 0)
    arena.system_bytes = arena.seen_bytes
    # Descriptions lead to the first block of each extent, and caches still to what they handed out.
    metadata = [(r.start, r.end) for r in regions if "jemalloc" in base_name(r.path)] + stacks
    metadata += [(at, at + _DESCRIPTION_BYTES) for at in extents.addresses.tolist()]
    return WalkedHeap([arena], metadata)


def _find_leaves(reader: PieceReader, regions: list[Region]) -> list[tuple[int, U64]]:
    """(bits 30 to 47, the table by bits 12 to 29) of all such tables; none without a page map."""
    data = [n for n, r in enumerate(regions[:-1]) if r.rights.startswith("rw") and r.inode]
    named = [n for n in data if "jemalloc" in base_name(regions[n].path)]
    for n in named or data:
        bss = regions[n + 1]
        follows = bss.start == regions[n].end and not bss.inode and not bss.path.startswith("[")
        if not follows or bss.end - bss.start < _LEAF_BYTES:
            continue
        words = reader.words(bss.start, min(bss.end - bss.start, _MOST_DATA_BYTES))
        good = (words > 1 << 16) & (words < np.uint64(1 << 47)) & (words & np.uint64(63) == 0)
        # The whole table holds only such addresses and zeros: most data are refused by that.
        odd = np.concatenate([[0], np.cumsum((words != 0) & ~good)])
        roots = np.flatnonzero(odd[_ENTRIES:] == odd[:-_ENTRIES])
        if not len(roots):
            continue
        places = np.flatnonzero(good)
        places = places[(places >= roots[0]) & (places < roots[-1] + _ENTRIES)]
        for at in places[:_MOST_TRIED].tolist():
            key = _key_of_leaf(reader, regions, int(words[at]))
            if key is not None and 0 <= at - key <= len(words) - _ENTRIES:
                table = words[at - key : at - key + _ENTRIES]
                return [(key, reader.words(int(table[key]), _LEAF_BYTES))
                        for key in np.flatnonzero(table).tolist()]  # fmt: skip
    return []


def _key_of_leaf(reader: PieceReader, regions: list[Region], address: int) -> int | None:
    """Bits 30 to 47 of the addresses that a table is about; None if it is no such table."""
    inside = next((r for r in regions if r.start <= address < r.end and r.is_anonymous), None)
    if inside is None or address + _LEAF_BYTES > inside.end:
        return None
    leaf = reader.words(address, _LEAF_BYTES)
    at = np.flatnonzero(leaf)[:64]
    if not len(at):
        return None
    heads, was_read = reader.memory.read(leaf[at] & np.uint64((1 << 48) - 128), 16)
    fits = was_read & (
        (heads[:, 1] >> np.uint64(12)) & np.uint64((1 << 18) - 1) == at.astype(np.uint64)
    )
    if np.count_nonzero(fits) < max(1, len(at) // 5):
        return None
    return int(heads[np.flatnonzero(fits)[0], 1]) >> 30


class _Extents:
    """The descriptions of all extents (``edata_t``)."""

    def __init__(self, reader: PieceReader, pages: U64, leads_to: U64, classes: I64) -> None:
        """Columns of the page map: address of a page, of its description, and its size class."""
        self.addresses, back = np.unique(leads_to, return_inverse=True)
        self.rows, _ = reader.memory.read(self.addresses, _DESCRIPTION_BYTES)
        bits = self.rows[:, 0]
        page = ~np.uint64(PAGE_BYTES - 1)
        self.base, self.size_bytes = self.rows[:, 1] & page, self.rows[:, 2] & page
        self.size_class = ((bits >> np.uint64(20)) & np.uint64(255)).astype(np.int64)
        self.free_count = ((bits >> np.uint64(28)) & np.uint64(1023)).astype(np.int64)
        self.state = (bits >> np.uint64(17)) & np.uint64(7)
        exists = (self.base != 0) & (self.size_bytes != 0)
        self.is_kept = exists & np.isin(self.state, np.array(_DIRTY, np.uint64))
        active = exists & (self.state == 0)
        inside = (pages >= self.base[back]) & (pages - self.base[back] < self.size_bytes[back])
        firsts = active[back] & (pages == self.base[back])
        same = (classes == self.size_class[back])[firsts]
        if (
            not same.size
            or same.mean() < _LEAST_SHARE
            or inside[active[back]].mean() < _LEAST_SHARE
        ):
            raise NotWalkableError(
                "jemalloc's data have another layout than version 5.3.0's",
                hint="trace the process to see new blocks: tracelloc -p PID",
            )
        self.is_slab = active & ((bits >> np.uint64(12)) & np.uint64(1) == 1)
        self.is_large = active & ~self.is_slab

    def entries(self) -> U64:
        """All blocks and free regions, by address."""
        slabs = np.flatnonzero(self.is_slab)
        sizes = _SIZES[self.size_class[slabs]]
        counts = np.minimum(self.size_bytes[slabs].astype(np.int64) // np.maximum(sizes, 1),
                            _SLAB_REGIONS)  # fmt: skip
        is_free = self._bitmaps(slabs, counts)
        row = np.repeat(np.arange(len(slabs)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = self.base[slabs][row] + (number * sizes[row]).astype(np.uint64)
        states = np.where(is_free[row, number], BlockState.FREE, BlockState.IN_USE)
        large, kept = np.flatnonzero(self.is_large), np.flatnonzero(self.is_kept)
        large_sizes = _SIZES[self.size_class[large]].astype(np.uint64)
        end = np.uint64(BlockState.END)
        entries = np.concatenate([
            starts | states.astype(np.uint64),
            (self.base[slabs] + (counts * sizes).astype(np.uint64)) | end,
            self.rows[large, 1] & ADDRESS_BITS | np.uint64(BlockState.IN_USE),
            ((self.rows[large, 1] & ADDRESS_BITS) + large_sizes) | end,
            self.base[kept] | np.uint64(BlockState.FREE),
            (self.base[kept] + self.size_bytes[kept]) | end,
        ])  # fmt: skip
        entries = np.sort(entries)
        # Where one ends and the next begins at once, the end is no entry.
        same = np.zeros(len(entries), np.bool_)
        same[1:] = entries[1:] & ADDRESS_BITS == entries[:-1] & ADDRESS_BITS
        needed: U64 = entries[~(same & (entries & np.uint64(7) == BlockState.END))]
        return needed

    def _bitmaps(self, slabs: npt.NDArray[np.intp], counts: I64) -> Mask:
        """Which regions of slabs are free. The bitmap is where it agrees with the free count."""
        inside = np.arange(_SLAB_REGIONS) < counts[:, None]
        best, agreeing = np.zeros(inside.shape, np.bool_), -1
        for offset in range(24, 72, 8):
            words = self.rows[slabs, offset // 8 : offset // 8 + _SLAB_REGIONS // 64]
            bits = np.unpackbits(
                np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little"
            )[:, :_SLAB_REGIONS].astype(np.bool_)
            bits &= inside
            agree = int(np.count_nonzero(bits.sum(axis=1) == self.free_count[slabs]))
            if agree > agreeing:
                best, agreeing = bits, agree
        if agreeing < (2 * _LEAST_SHARE - 1) * len(slabs):
            raise NotWalkableError(
                f"{len(slabs) - agreeing} of {len(slabs)} of jemalloc's bitmaps and counts differ",
                hint="its version is not 5.3.0, or the process is too busy: try again",
            )
        return best


def _mark_cached(reader: PieceReader, regions: list[Region], entries: U64) -> list[tuple[int, int]]:
    """Marks regions in threads' caches: free, although jemalloc counts them as in use.

    Returns the start and end of each cache's stack.

    A cache's bin (``cache_bin_t``) is 24 bytes: the head of its stack, statistics, and the lowest
    16 bits of the stack's low-water mark, its full and its empty end.
    """
    low16 = np.uint64(0xFFFF)
    stacks: list[tuple[int, int]] = []
    for region in regions:
        if region.inode or region.rights[:2] != "rw" or region.path.startswith("["):
            continue
        resident = ResidentRuns.read(reader.memory, [(region.start, region.end)])
        for first, last in zip(resident.starts.tolist(), resident.ends.tolist(), strict=True):
            for at in range(first, last, _SCAN_BYTES):
                words = reader.words(at, min(_SCAN_BYTES + 16, last - at))
                if len(words) < 3:
                    continue
                head, ends = words[:-2], words[2:]
                full = (ends >> np.uint64(16)) & low16
                empty = (ends >> np.uint64(32)) & low16
                span, left = (empty - full) & low16, (empty - (head & low16)) & low16
                good = (ends >> np.uint64(48) == 0) & (span > 0) & (span <= 8 * _CACHE_SLOTS)
                good &= (left <= span) & ((span | left | head) & np.uint64(7) == 0)
                good &= (head > 1 << 16) & (head < np.uint64(1 << 47))
                good &= ((empty - (ends & low16)) & low16) <= left
                sure = set()
                for n in np.flatnonzero(good & (left > 0)).tolist():
                    if _mark_stack(entries, reader.words(int(head[n]), int(left[n]))):
                        sure.add(n)
                for n in _with_neighbors(sure, good):
                    end = int(head[n]) + int(left[n])
                    stacks.append((end - int(span[n]), end))
    return stacks


def _with_neighbors(sure: set[int], good: Mask) -> set[int]:
    """Bins that are known by their contents, and all beside them: others may be empty now."""
    found = set(sure)
    for step in (-_BIN_WORDS, _BIN_WORDS):
        for n in sure:
            at = n + step
            while 0 <= at < len(good) and at not in found and good[at]:
                found.add(at)
                at += step
    return found


def _mark_stack(entries: U64, stack: U64) -> bool:
    """Marks the regions in one cache, if all are regions of one size. Returns whether they are."""
    wanted = stack | np.uint64(BlockState.IN_USE)
    at = np.searchsorted(entries, wanted)
    if (at >= len(entries) - 1).any() or (entries[at] != wanted).any():
        return False
    sizes = (entries[at + 1] & ADDRESS_BITS) - stack
    is_cache = len(np.unique(sizes)) == 1
    if is_cache:
        entries[at] = stack | np.uint64(BlockState.CACHED)
    return is_cache
