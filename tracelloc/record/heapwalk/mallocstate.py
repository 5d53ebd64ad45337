"""Finds glibc's arenas by what they contain: no symbols, no version.

Format: malloc/malloc.c and malloc/arena.c of glibc 2.26 to 2.43, 64 bits: ``struct malloc_state``,
``struct malloc_par``, ``heap_info``.

- An empty bin points to itself, and the first and the last chunk of another one point back to it.
  127 pairs of words that do so are ``malloc_state.bins``; ``top`` is 16 bytes before them, ``next``
  2048 behind, ``system_mem`` 2072.
- Following ``next`` leads back to the first arena, whose address is 112 bytes before its bins (with
  fastbins, to 2.42) or 24 bytes (without).
- Other arenas lie behind the ``heap_info`` of their first heap, whose address is a multiple of a
  heap's largest size.
"""

from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import base_name
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import PAGE_BYTES, U64
from tracelloc.record.process.regions import Region

_BINS: Final = 127
_LEAST_EMPTY: Final = 8  # If so many bins are empty, the others need no proof
_LEAST_PROVEN: Final = 100  # Others may be about to change
_HEADS: Final = 112, 24  # Bytes of `malloc_state` before its bins
_TOP: Final = -16
_NEXT: Final = 2048
_SYSTEM: Final = 2072  # Where the field `system_mem` is, relative to the bins; the others likewise
_STATE_BYTES: Final = {112: 2200, 24: 2112}  # sizeof(malloc_state), by what is before the bins
_NONCONTIGUOUS: Final = 2  # In `malloc_state.flags`: it has memory that is not from brk(2)
_MOST_ARENAS: Final = 4096
_MOST_FOUND: Final = 1024
# (main arena, bytes before its bins), by process and C library
_FOUND: Final[dict[tuple[object, ...], tuple[int, int]]] = {}
_MOST_DATA_BYTES: Final = 64 << 20
# HEAP_MAX_SIZE, and 4 huge pages of 2 MiB, 32 MiB and 1 GiB (glibc.malloc.hugetlb=2).
_LARGEST_HEAPS: Final = tuple(mib << 20 for mib in (64, 8, 128, 4096))
_FASTBINS_BYTES: Final = 80
_MOST_TOP_BYTES: Final = 1 << 44
_LARGEST_TCACHE: Final = 8 << 20  # Bytes up to which `tcache_max_bytes` may be set


@dataclass(slots=True)
class ArenaState:
    """One arena's ``malloc_state``, as it was when read."""

    address: int
    bins: int
    top: int
    next: int
    system_bytes: int
    is_contiguous: bool
    top_bytes: int = 0  # Size of the top chunk, once it was read

    @property
    def head_bytes(self) -> int:
        """Bytes of ``malloc_state`` before its bins, which tell the layout."""
        return self.bins - self.address

    @property
    def struct_bytes(self) -> int:
        return _STATE_BYTES[self.head_bytes]

    def read_top(self, reader: PieceReader) -> int:
        """Reads ``top``, the address of the last chunk, and its size again; returns ``top``."""
        self.top = reader.word(self.bins + _TOP) or self.top
        self.top_bytes = min(reader.word(self.top + 8) & ~7, _MOST_TOP_BYTES)
        return self.top


@dataclass(frozen=True, slots=True)
class MallocParameters:
    """The fields that tracelloc reads of ``mp_``, glibc's ``struct malloc_par``."""

    sbrk_base: int  # Where the memory from brk(2) begins
    mapped_sum_at: int  # Address of `mmapped_mem`: the bytes of all mapped blocks


def find_arena_states(reader: PieceReader, regions: list[Region]) -> list[ArenaState]:
    """Finds all arenas, the main one first, of the C library with most memory; or none."""
    data = [r for r in regions if r.rights.startswith("rw") and r.inode]
    of_c_library = [r for r in data if base_name(r.path).startswith(("libc.so", "libc-2"))]
    key = reader.memory.process.pid, *of_c_library
    is_only_one = len(of_c_library) == 1
    if is_only_one and key in _FOUND:
        known = _circle(reader, *_FOUND[key])
        if any(arena.system_bytes for arena in known):
            return known
    found = [
        arenas
        for region in of_c_library or data  # a static program has its C library anywhere
        for bins in _find_bins(reader, region, regions)
        for head in _HEADS
        if (arenas := _circle(reader, bins - head, head))
    ]
    used = [arenas for arenas in found if any(arena.system_bytes for arena in arenas)]
    best = max(used, key=lambda arenas: sum(arena.system_bytes for arena in arenas), default=[])
    if best and is_only_one:
        if len(_FOUND) >= _MOST_FOUND:
            _FOUND.clear()
        _FOUND[key] = best[0].address, best[0].head_bytes
    return best


def _find_bins(reader: PieceReader, region: Region, regions: list[Region]) -> list[int]:
    end = next(
        (r.end for r in regions if r.start == region.end and not r.inode and "w" in r.rights
         and not r.path.startswith("[")),
        region.end,
    )  # fmt: skip
    words = reader.words(region.start, min(end - region.start, _MOST_DATA_BYTES))
    own = np.uint64(region.start - 16) + np.uint64(8) * np.arange(len(words), dtype=np.uint64)
    empty = np.zeros(len(words), np.bool_)
    empty[:-1] = (words[:-1] == own[:-1]) & (words[1:] == own[:-1])
    plausible = (words >= PAGE_BYTES) & (words < np.uint64(reader.address_end))
    plausible &= words & np.uint64(7) == 0
    may_be = empty.copy()  # Every start at which all of the 127 pairs may be bins
    may_be[:-1] |= plausible[:-1] & plausible[1:]
    fits = np.zeros(len(words), np.bool_)
    for parity in (0, 1):
        others = np.append(0, np.cumsum(~may_be[parity::2]))
        whole = others[_BINS:] == others[:-_BINS]
        fits[parity::2][: len(whole)] = whole
    starts = np.flatnonzero(fits[2 : max(2, len(words) - 2 * _BINS - 11)]) + 2
    return [
        region.start + 8 * at
        for at in starts.tolist()
        if np.count_nonzero(empty[at : at + 2 * _BINS : 2]) >= _LEAST_EMPTY
        or _are_bins(reader, own[at : at + 2 * _BINS : 2], words[at : at + 2 * _BINS])
    ]


def _are_bins(reader: PieceReader, own: U64, words: U64) -> bool:
    chunks, was_read = reader.memory.read(words + np.uint64(16), 16)
    backward, forward = chunks[::2, 1] == own, chunks[1::2, 0] == own
    return (
        int(np.count_nonzero(backward & forward & was_read[::2] & was_read[1::2])) >= _LEAST_PROVEN
    )


def _circle(reader: PieceReader, address: int, head: int) -> list[ArenaState]:
    """Returns all arenas of the list that begins at an address, if it leads back there."""
    arenas: list[ArenaState] = []
    at = address
    while len(arenas) < _MOST_ARENAS:
        arena = _state_at(reader, at, head)
        if arena is None:
            return []
        arenas.append(arena)
        at = arena.next
        if at == address:
            return arenas
    return []


def _state_at(reader: PieceReader, address: int, head: int) -> ArenaState | None:
    if address & 7 or not 0 < address < reader.address_end:
        return None
    words = reader.words(address, head + _SYSTEM + 16)
    at = head // 8
    top, system, most = (int(words[at + n]) for n in (_TOP // 8, _SYSTEM // 8, _SYSTEM // 8 + 1))
    if system > most or top & 15:
        return None
    flags = int(words[0]) >> 32
    following = int(words[at + _NEXT // 8])
    return ArenaState(address, address + head, top, following, system, not flags & _NONCONTIGUOUS)


def find_parameters(
    reader: PieceReader, main: ArenaState, regions: list[Region]
) -> MallocParameters | None:
    """Finds ``mp_``, which is near the main arena (in shared libraries, before it).

    The field ``sbrk_base`` is followed by tcache_bins, tcache_max_bytes and tcache_count, and
    preceded by ``mmapped_mem``, two words before. Other words may look like it: memory from brk(2)
    usually begins with it, and the bins are as many as the largest size needs.
    """
    heap = [r for r in regions if r.path == "[heap]"]
    begin = main.address - PAGE_BYTES
    words = reader.words(begin, 3 * PAGE_BYTES)
    bins, most, count = (words[n : len(words) - 3 + n] for n in (1, 2, 3))
    good = (bins > 0) & (bins <= 76) & (most >= 16) & (most <= _LARGEST_TCACHE)
    good &= (count > 0) & (count < 1 << 16)
    found = list[tuple[bool, bool, int, int]]()
    for at in np.flatnonzero(good[2:]).tolist():
        base, bin_count, most_bytes = words[at + 2 : at + 5].tolist()
        is_base = base == 0 and bin_count == 64
        if heap:
            is_base = heap[0].start <= base < heap[-1].end
        if is_base:
            is_first = bool(heap) and base == heap[0].start
            # request2size, csize2tidx
            fits = bin_count == (max(most_bytes + 23, 32) // 16 * 16 - 17) // 16 + 1
            found.append((is_first, fits, base, begin + 8 * at))
    return MallocParameters(*max(found)[2:]) if found else None


def heaps_of(reader: PieceReader, arena: ArenaState) -> tuple[list[tuple[int, int]], int, str]:
    """Returns the heaps of an arena that is not the main one, by address. The result: (first chunk
    and end of each heap, bytes before the first chunks, what is wrong; empty if nothing is).
    """
    info_bytes = arena.address % PAGE_BYTES
    first_heap = arena.address - info_bytes
    largest = next(
        (most for most in _LARGEST_HEAPS if reader.word(arena.top & -most) == arena.address), 0
    )
    if not largest:
        return [], 0, f"no heap of the arena at {arena.address:#x} holds its top"
    found: list[tuple[int, int]] = []
    heap, headers, seen = arena.top & -largest, 0, set[int]()
    while heap and heap not in seen and len(seen) < _MOST_ARENAS:
        seen.add(heap)
        owner, previous, size_bytes = reader.words(heap, 24).tolist()
        if owner != arena.address or size_bytes > largest or heap % largest:
            return found[::-1], headers, f"the heap at {heap:#x} is not one of its arena"
        first = heap + info_bytes
        if heap == first_heap:
            first = ((first + arena.struct_bytes + 31) & ~15) - 16  # Aligned for the program
        found.append((first, heap + size_bytes))
        headers += first - heap
        heap = previous
    return found[::-1], headers, ""


def fast_heads(reader: PieceReader, arena: ArenaState) -> U64:
    """Returns the address in the first chunk of each of an arena's fastbins; 0 if empty."""
    if arena.head_bytes != _HEADS[0]:  # the version has none
        return np.empty(0, np.uint64)
    chunks = reader.words(arena.address + 16, _FASTBINS_BYTES)
    return np.where(chunks > 0, chunks + np.uint64(16), np.uint64(0))
