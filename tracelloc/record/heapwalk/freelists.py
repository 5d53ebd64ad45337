"""Chunks in fastbins and thread caches (tcache) of glibc, which the chunk headers show as in use.

Formats: glibc's malloc/malloc.c, ``tcache_perthread_struct``, ``tcache_entry``, ``mfastbinptr``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from tracelloc.record.heapwalk.arenas import ADDRESS_BITS, NO_ENTRIES, Arena, BlockState, WalkedHeap
from tracelloc.record.heapwalk.chunks import ListReader, blocks_between
from tracelloc.record.heapwalk.mallocstate import ArenaState, fast_heads
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import U64, Mask

_MOST_LISTED: Final = 1 << 22  # Chunks in one list of free chunks
_FIRST_FASTBIN_BYTES: Final = 32
# Least and most bytes of the chunks with a thread's cache, by the number of its lists (2.30 to
# 2.41; 2.42).
_TCACHES: Final = {64: (0x290, 0x290), 76: (0x300, 0x340)}
_SMALL_BINS: Final = 64
_SIZE_BITS: Final = 0xFFFFFFFFFFFFFFF0  # Of the size in the word before a chunk: without its flags
_MOST_CHANGED: Final = 2  # Lists of a thread cache that may change while it is read
_MOST_DOUBTFUL: Final = 64  # Chunks per arena that are looked at again: maybe thread caches
_MOST_TRIES: Final = 10  # Reads of lists that change meanwhile
_GROWTH_BYTES: Final = 64 << 20  # How far a heap may have grown since it was walked
_LONG: Final = 1 << 16  # Chunks in lists that take long to read, and of which few change meanwhile


def mark_cached(
    reader: PieceReader, lists: ListReader, states: list[ArenaState], walked: WalkedHeap
) -> None:
    """Marks chunks in fastbins and thread caches as free, and thread caches as glibc's own."""
    arenas = [arena for arena in walked.arenas if arena.parts]
    if not arenas:
        return
    lowest = min(arena.parts[0].span[0] for arena in arenas)
    highest = max(arena.parts[-1].span[1] for arena in arenas) + _GROWTH_BYTES
    free_list = _FreeLists(lists, lowest, highest)
    for state in states:
        fast, _, _ = _read_repeatedly(
            partial(fast_heads, reader, state),
            lambda n: _FIRST_FASTBIN_BYTES + 16 * n,
            16,
            free_list,
        )
        _mark(arenas, fast, BlockState.FAST)
    for arena in arenas:
        for count, (least_bytes, most_bytes) in _TCACHES.items():
            found = np.concatenate([
                NO_ENTRIES,
                *(_of_size(entries, least_bytes, most_bytes) for entries in arena.entries()),
            ])  # fmt: skip
            if len(found):
                _mark_tcaches(reader, free_list, (arena, found), arenas, count)


def _mark_tcaches(
    reader: PieceReader,
    free_lists: _FreeLists,
    found: tuple[Arena, U64],
    arenas: list[Arena],
    count: int,
) -> None:
    arena, addresses = found
    rows, was_read = reader.memory.read(addresses + np.uint64(16), 10 * count)
    counts, heads = rows[:, : count // 4].copy().view(np.uint16), rows[:, count // 4 :]
    low, high = np.uint64(free_lists.lowest), np.uint64(free_lists.highest)
    good = was_read & ((heads & np.uint64(15)) == 0).all(axis=1)
    good &= ((heads == 0) | ((heads > low) & (heads < high))).all(axis=1)
    good &= counts.any(axis=1)
    if count == _SMALL_BINS:  # some change while they are read
        good &= np.count_nonzero((counts > 0) != (heads != 0), axis=1) <= _MOST_CHANGED + 2
    good &= heads.any(axis=1)
    addresses, heads = addresses[good], heads[good]
    leads = _lead_to_chunks(reader, heads)
    # A busy thread's lists have changed until their chunks are read, if tracelloc had to wait.
    for address in [*addresses[leads].tolist(), *addresses[~leads][:_MOST_DOUBTFUL].tolist()]:
        cached = _read_tcache(reader, free_lists, address, count)
        if cached is not None:
            _mark([arena], np.array([address], np.uint64), BlockState.OWN)
            _mark(arenas, cached, BlockState.CACHED)


def _read_tcache(
    reader: PieceReader, free_lists: _FreeLists, address: int, count: int
) -> U64 | None:
    """Returns the chunks in a thread cache; None if there is no thread cache at the address."""
    heads_now = partial(reader.words, address + 16 + 2 * count, 8 * count)
    for _ in range(_MOST_TRIES):
        if not _lead_to_chunks(reader, heads_now()[None, :])[0]:
            continue
        cached, lists, empty_lists = _read_repeatedly(
            heads_now, lambda number: 32 + 16 * number if number < _SMALL_BINS else 0, 0, free_lists
        )
        if lists and empty_lists <= min(_MOST_CHANGED, lists - 1):
            return cached
    return None


def _lead_to_chunks(reader: PieceReader, heads: U64) -> Mask:
    """Returns a mask of rows of heads that lead to chunks of their sizes, but for a few."""
    heads = heads[:, :_SMALL_BINS]
    row, number = np.nonzero(heads)
    sizes, _ = reader.memory.read(heads[row, number] - np.uint64(8), 8)
    fits = sizes[:, 0] & np.uint64(_SIZE_BITS) == 32 + 16 * number.astype(np.uint64)
    used, fitting = (np.bincount(row[which], minlength=len(heads)) for which in (fits | True, fits))
    are_fit: Mask = (used - fitting <= _MOST_CHANGED + 2) & ((fitting > 0) | (used == 0))
    return are_fit


def _read_repeatedly(
    heads_now: Callable[[], U64],
    size_of: Callable[[int], int],
    to_user: int,
    free_lists: _FreeLists,
) -> tuple[U64, int, int]:
    """Reads free lists of a running thread, until nothing has changed or no more chunks are found.

    ``heads_now`` returns the head of each list, 0 if it is empty. A chunk that is allocated during
    the read leads nowhere, and the rest of its list would be missed. Returns (chunks, number of
    lists that were not empty at first, how many of these had no chunk).
    """
    found, counts = NO_ENTRIES, (0, 0)
    for tries in range(_MOST_TRIES):
        heads = heads_now()
        free_lists.forget()
        used = np.flatnonzero(heads).tolist()
        lists = [free_lists.read(int(heads[n]), size_of(n), to_user) for n in used]
        # (Without counts, numpy would import numpy.ma: 30 ms.)
        known, every = len(found), np.concatenate([found, *lists, NO_ENTRIES])
        found, _ = np.unique(every, return_counts=True)
        if tries == 0:
            counts = len(used), sum(not len(each) for each in lists)
        elif len(found) == known:
            break
        if len(found) > _LONG or np.array_equal(heads, heads_now()):
            break
    return found, *counts


class _FreeLists:
    """Reads lists of free chunks within the heaps."""

    def __init__(self, lists: ListReader, lowest: int, highest: int) -> None:
        self.lowest, self.highest = lowest, highest
        self._lists = lists
        self._room = np.empty(_MOST_LISTED, np.uint64)

    def forget(self) -> None:
        self._lists.forget()

    def read(self, user: int, size_bytes: int, to_user: int) -> U64:
        """Returns the chunks of a list whose first link leads to ``user``; see ``ListReader``.
        Links are mangled since glibc 2.32: only the right reading of a list comes to its end.
        """
        best = NO_ENTRIES
        if not self.lowest <= user < self.highest:
            return best
        for is_mangled in (True, False):
            count, is_whole = self._lists.follow(
                user, size_bytes, is_mangled, to_user, self.lowest, self.highest, self._room
            )
            if is_whole or count > len(best):
                best = self._room[:count].copy()
            if is_whole:
                break
        return best


def _of_size(entries: U64, least_bytes: int, most_bytes: int) -> U64:
    rows = np.empty(len(entries), np.intp)
    count = blocks_between(entries, least_bytes, most_bytes, rows)
    return entries[rows[:count]] & ADDRESS_BITS


def _mark(arenas: list[Arena], addresses: U64, state: BlockState) -> None:
    wanted = addresses | np.uint64(BlockState.IN_USE)
    for part in (part for arena in arenas for part in arena.parts):
        at = part.place(wanted)
        at[at == len(part.codes)] = 0
        part.codes.set_states(at[part.at(at) == wanted], state)
