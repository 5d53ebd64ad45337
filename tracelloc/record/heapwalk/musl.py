"""Walks musl's heap (mallocng, musl 1.2.1 and newer).

Format: src/malloc/mallocng/meta.h. Areas of descriptions (``struct meta``) are pages that begin
with the process's secret; a description leads to a group of slots of one size, whose first word
leads back to the description. That proves both.
"""

from typing import Final

import numpy as np

from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import Arena, BlockState, WalkedHeap, joined
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import AddressRuns, PieceReader
from tracelloc.record.process.memory import U64

# Size classes, in units of 16 bytes.
_UNITS: Final = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
)  # fmt: skip
_AREA_BYTES: Final = 4096  # A page of descriptions, and unit of mappings, on all kernels
_META_WORDS: Final = 5
_MOST_METAS: Final = 101  # Descriptions in a page
_OWN_MAPPING: Final = 63  # The size class of a block that is a mapping of its own
_HEADER_BYTES: Final = 16


def walk_musl(reader: PieceReader, tally: ClassTally) -> WalkedHeap | None:
    """Walks musl's heap; None if there is none."""
    regions = [r for r in reader.regions() if r.rights[:2] == "rw" and r.rights[3] == "p"]
    resident = AddressRuns.read_resident(reader.memory, [(r.start, r.end) for r in regions])
    slots: dict[int, tuple[int, BlockState]] = {}
    groups: list[int] = []
    areas: list[tuple[int, int]] = []
    for first, last in zip(resident.starts.tolist(), resident.ends.tolist(), strict=True):
        pages = np.arange(first, last, _AREA_BYTES).astype(np.uint64)
        heads, was_read = reader.memory.read(pages, 24)
        good = was_read & (heads[:, 0] != 0) & (heads[:, 2] > 0) & (heads[:, 2] <= _MOST_METAS)
        for page in pages[good].tolist():
            found = _groups_of(reader, page)
            if found:
                areas.append((page, page + _AREA_BYTES))
            for group, some in found:
                groups.append(group)
                slots.update(some)
    if not groups:
        return None
    entries = _entries_of(slots, groups)
    tally.add_entries(reader.memory, entries)
    arena = Arena("heap", MallocLibrary.MUSL, 0).add(entries)
    arena.system_bytes = arena.seen_bytes
    return WalkedHeap([arena], areas)


def _groups_of(
    reader: PieceReader, page: int
) -> list[tuple[int, dict[int, tuple[int, BlockState]]]]:
    """Reads a page's groups: (group's address, its slots: size and state by address)."""
    words = reader.words(page, _AREA_BYTES)
    metas = words[3 : 3 + _META_WORDS * int(words[2])].reshape(-1, _META_WORDS)
    used = np.flatnonzero((metas[:, 2] != 0) & (metas[:, 2] & np.uint64(15) == 0))
    heads, was_read = reader.memory.read(metas[used, 2], 8)
    own = np.uint64(page + 24) + np.uint64(8 * _META_WORDS) * used.astype(np.uint64)
    found = []
    for row in metas[used[was_read & (heads[:, 0] == own)]].tolist():
        _, _, group, masks, bits = row
        free = (masks & 0xFFFFFFFF) | masks >> 32
        last, size_class, pages = bits & 31, bits >> 6 & 63, bits >> 12
        if size_class < len(_UNITS) and not (pages and not last):
            stride = 16 * _UNITS[size_class]
        elif size_class == _OWN_MAPPING or pages:
            stride = pages * _AREA_BYTES - _HEADER_BYTES
        else:
            continue
        found.append((group, {
            group + _HEADER_BYTES + number * stride:
                (stride, BlockState.FREE if free >> number & 1 else BlockState.IN_USE)
            for number in range(last + 1)
        }))  # fmt: skip
    return found


def _entries_of(slots: dict[int, tuple[int, BlockState]], groups: list[int]) -> U64:
    """Returns entries of all slots; slots that hold a smaller group are the library's own."""
    starts = np.array(sorted(slots), np.uint64)
    sizes = np.array([slots[start][0] for start in starts.tolist()], np.uint64)
    states = np.array([slots[start][1] for start in starts.tolist()], np.uint64)
    inside = np.searchsorted(starts, np.array(groups, np.uint64), side="right") - 1
    at = inside[inside >= 0]
    holds = np.array(groups, np.uint64)[inside >= 0] < starts[at] + sizes[at]
    states[at[holds]] = BlockState.OWN
    return joined(np.concatenate([starts | states, (starts + sizes) | np.uint64(BlockState.END)]))
