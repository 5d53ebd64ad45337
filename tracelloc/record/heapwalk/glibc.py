"""Walks glibc's heap: every chunk of every arena, while the process allocates.

A chunk tells where the next one begins, and that one whether the first is in use. An impossible
chunk has changed while it was read, so memory is read again from a chunk before it, further back
each time and in smaller pieces. Chunks in thread caches (tcache) and fastbins are marked as in
use; lists tell which of them are free.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import Rows
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import (
    ADDRESS_BITS,
    NO_ENTRIES,
    STATE_BITS,
    Arena,
    BlockState,
    WalkedHeap,
)
from tracelloc.record.heapwalk.chunks import follow_chunks
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.freelists import mark_cached
from tracelloc.record.heapwalk.mallocstate import (
    ArenaState,
    find_arena_states,
    find_parameters,
    heaps_of,
)
from tracelloc.record.heapwalk.mappedblocks import find_mapped
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import PAGE_BYTES, U64
from tracelloc.record.process.regions import Region

Bounds = Callable[[], tuple[int, int]]  # (address of the top chunk, end of the stretch) as of now

_PIECE_BYTES: Final = 4 << 20
_SMALL_PIECE_BYTES: Final = 1 << 16  # Read within microseconds: little changes meanwhile
_MOST_TRIES: Final = 10  # Reads of one place before it is given up
_MOST_RETRIES: Final = 400  # Reads again in one stretch
_PROBED_BYTES: Final = 1 << 13
_SURE: Final = 16  # Chunks that must follow each other where a walk begins again
_SEARCH_BYTES: Final = 64 << 20  # How far to look for chunks behind memory that isn't malloc's
_MOST_GAPS: Final = 1024  # Places in one stretch at which a walk begins again
_LARGEST_HEAP_BYTES: Final = 4 << 30  # Of an arena that is not the main one: four huge pages
_FENCES_BYTES: Final = 48  # Most bytes of the two headers that end a heap
_FENCE_BYTES: Final = 16
_LONGEST_RUN_BYTES: Final = 32 << 20  # Bytes of a stretch that are read before they are packed


@dataclass(slots=True)
class _Stretch:
    tally: ClassTally
    parts: list[U64] = field(default_factory=list)  # Entries, by address
    # For each part, rows whose contents begin with what may be a virtual table's address.
    tables: list[tuple[Rows, U64]] = field(default_factory=list)
    retries: int = 0
    broken_at: int = 0  # Address at which reading was given up; 0 if the stretch is whole
    cut_at: int = 0  # Where the next run begins; 0: at its end

    @property
    def last(self) -> int:
        """The address of the last chunk; 0 if there is none."""
        return int(self.parts[-1][-1] & ADDRESS_BITS) if self.parts else 0

    def add(self, entries: U64, firsts: U64, *, is_used_before: bool) -> None:
        if self.parts and not is_used_before:
            self.parts[-1][-1] &= ADDRESS_BITS
        if len(entries):
            rows = self.tally.table_rows(firsts)
            self.parts.append(entries.copy())
            self.tables.append((rows.copy(), firsts[rows]))

    def drop(self, count: int) -> int:
        """Drops the last chunks. Returns the address of the first dropped chunk; 0 if none."""
        address = 0
        while self.parts and count > 0:
            part, (rows, firsts) = self.parts.pop(), self.tables.pop()
            left = max(0, len(part) - count)
            address = int(part[left] & ADDRESS_BITS)
            if left:
                kept = rows < left
                self.parts.append(part[:left])
                self.tables.append((rows[kept], firsts[kept]))
                # Its last one's state is known only with the next.
                part[left - 1] |= np.uint64(BlockState.IN_USE)
            count -= len(part)
        return address


def walk_glibc(reader: PieceReader, tally: ClassTally) -> WalkedHeap | None:
    """Walks all arenas of glibc's malloc; returns None if that is not there or not used."""
    regions = reader.regions()
    states = find_arena_states(reader, regions)
    if not states:
        return None
    main = states[0]
    parameters = find_parameters(reader, main, regions)
    walk = _GlibcWalk(
        reader, tally, WalkedHeap([], [(main.address, main.address + main.struct_bytes)])
    )
    for number, state in enumerate(states):
        if number == 0:
            walk.main(state, regions, parameters.sbrk_base if parameters else None)
        else:
            walk.other(state, f"arena {number}")
    with reader.lists() as lists:
        mark_cached(reader, lists, states, walk.walked)
    skipped = [*walk.heaps, *((r.start, r.end) for r in regions if r.path.startswith("[stack"))]
    sum_at = parameters.mapped_sum_at if parameters else None
    mapped, notes = find_mapped(reader, regions, skipped, sum_at, tally)
    walk.walked.notes += notes
    if mapped.parts or mapped.system_bytes:
        walk.walked.arenas.append(mapped)
    return walk.walked


@dataclass(slots=True)
class _GlibcWalk:
    reader: PieceReader
    tally: ClassTally
    walked: WalkedHeap
    heaps: list[tuple[int, int]] = field(default_factory=list)  # Address ranges of the heaps so far

    def main(self, state: ArenaState, regions: list[Region], sbrk_base: int | None) -> None:
        arena = Arena("main arena", MallocLibrary.GLIBC, state.system_bytes)
        stretches: list[tuple[int, int]] = []
        heap = [r for r in regions if r.path == "[heap]"]
        if heap and state.system_bytes:
            base = sbrk_base or heap[0].start  # A fork makes the kernel list several parts
            stretches.append(((base + 15) & ~15, heap[-1].end))
            arena.header_bytes += stretches[0][0] - base
        if not state.is_contiguous or not heap:
            stretches += _other_stretches(self.reader, state, regions)
        for first, end in sorted(stretches):  # entries are in the order of addresses
            self._stretch(state, arena, (first, end), _main_bounds(self.reader, state, first, end))
        self.walked.arenas.append(arena)

    def other(self, state: ArenaState, name: str) -> None:
        arena = Arena(name, MallocLibrary.GLIBC, state.system_bytes)
        stretches, arena.header_bytes, wrong = heaps_of(self.reader, state)
        if wrong:
            arena.unseen.append(wrong)
        for first, end in sorted(stretches):  # entries are in the order of addresses
            heap = first & -PAGE_BYTES
            self.walked.metadata.append((heap, first))

            def now(heap: int = heap, end: int = end) -> tuple[int, int]:
                size_bytes = min(self.reader.word(heap + 16), _LARGEST_HEAP_BYTES)
                return state.read_top(self.reader), max(end, heap + size_bytes)

            self._stretch(state, arena, (first, end), now)
        self.walked.arenas.append(arena)

    def _stretch(
        self, state: ArenaState, arena: Arena, stretch: tuple[int, int], bounds: Bounds
    ) -> None:
        """Adds a stretch's chunks, from the first to the top or the heap's end, to an arena."""
        at, end = stretch
        for _ in range(_MOST_GAPS):
            found = _read_stretch(self.reader, self.tally, at, bounds)
            self.walked.retries += found.retries
            top, end = state.top, max(end, bounds()[1])
            last = found.last
            entries, stop = _finished(found, top, end, top + state.top_bytes)
            first = 0
            for part, (rows, firsts) in zip(found.parts, found.tables, strict=True):
                inside = rows + first < len(entries) - 1
                self.tally.add_rows(entries, rows[inside] + first, firsts[inside])
                first += len(part)
            arena.add(entries)
            if found.cut_at:
                at = found.cut_at
                continue
            goal = top if stretch[0] <= top < end else end
            if not last or last >= goal or not (found.broken_at or stop < goal):
                if found.broken_at:
                    arena.unseen.append(f"from {found.broken_at:#x} on")
                break
            again = _goes_on(self.reader, stop, goal)
            if again is None:
                arena.unseen.append(f"{goal - stop:,} bytes from {stop:#x} on")
                break
            arena.foreign_bytes += again - stop
            at = again
        else:
            arena.unseen.append(f"from {at:#x} on")
        self.heaps.append((stretch[0] & -PAGE_BYTES, end))


def _other_stretches(
    reader: PieceReader, state: ArenaState, regions: list[Region]
) -> list[tuple[int, int]]:
    found = []
    for region in regions:
        if not region.is_anonymous:
            continue
        if region.start <= state.top < region.end or _is_chain(reader, region.start, region.end):
            found.append((region.start, region.end))
    return found


def _main_bounds(reader: PieceReader, state: ArenaState, first: int, end: int) -> Bounds:
    def now() -> tuple[int, int]:
        top = state.read_top(reader)
        return top, max(end, top + state.top_bytes) if top >= first else end

    return now


def _finished(found: _Stretch, top: int, end: int, top_end: int) -> tuple[U64, int]:
    """Returns (a stretch's entries up to the top or the end, closed by an ``END``, its address)."""
    if not found.parts:
        return NO_ENTRIES, 0
    stop = found.broken_at or found.cut_at or end
    run = np.concatenate([*found.parts, [~np.uint64(0)]])  # with room for the end
    count = len(run) - 1
    if int(run[0] & ADDRESS_BITS) <= top < stop:
        count = min(count, int(np.searchsorted(run, np.uint64(top + 8))))
        if int(run[count - 1] & ADDRESS_BITS) == top:
            run[count - 1] = top | BlockState.TOP
            stop = top_end if top < top_end < end else end  # Others may have what follows
    state, last = int(run[count - 1] & STATE_BITS), int(run[count - 1] & ADDRESS_BITS)
    if state == BlockState.OWN and last + _FENCES_BYTES < stop:
        stop = last + _FENCE_BYTES
    run[count] = stop | BlockState.END
    return run[: count + 1], stop


def _read_stretch(reader: PieceReader, tally: ClassTally, first: int, bounds: Bounds) -> _Stretch:
    """Reads a stretch: chunks from the first one on, as far as they follow each other."""
    found = _Stretch(tally)
    buffer = np.empty(_PIECE_BYTES // 8, np.uint64)
    entries = np.empty(_PIECE_BYTES // 32 + 2, np.uint64)
    firsts = np.empty(len(entries), np.uint64)
    at, before, tries, furthest, piece_bytes = first, 0, 0, 0, _PIECE_BYTES
    top, end = bounds()
    while at + 16 <= end:
        words = reader.words(at, min(piece_bytes, end - at) & ~7, buffer)
        count, following, reason, is_used = follow_chunks(
            words, at, at, before, end, entries, firsts
        )
        if not reason and found.parts and at - first >= _LONGEST_RUN_BYTES:
            found.add(entries[:0], firsts[:0], is_used_before=is_used)
            found.cut_at = at
            break
        found.add(entries[:count], firsts[:count], is_used_before=is_used)
        if not reason and following > at:
            before = following - found.last
            at = following
            if at > furthest:
                tries, piece_bytes = 0, _PIECE_BYTES
            continue
        top, end = bounds()
        if first <= top < end and found.last >= top:
            break  # there is nothing beyond the top
        if found.parts and int(found.parts[-1][-1] & STATE_BITS) == BlockState.OWN:
            found.broken_at = following  # another's memory follows
            break
        found.retries += 1
        tries += 1
        furthest = max(furthest, following)
        if tries > _MOST_TRIES or found.retries > _MOST_RETRIES:
            found.broken_at = following
            break
        at = found.drop(4 << tries) or first
        before = at - found.last if found.parts else 0
        piece_bytes = _SMALL_PIECE_BYTES
    return found


def _is_chain(reader: PieceReader, at: int, goal: int) -> bool:
    """Whether enough chunks, or all up to a goal, follow each other from an address on."""
    entries, firsts = np.empty(_SURE, np.uint64), np.empty(_SURE, np.uint64)
    count, before = 0, 0
    while count < _SURE and at < goal:
        words = reader.words(at, min(goal + 16 - at, _PROBED_BYTES) & ~7)
        n, following, reason, _ = follow_chunks(words, at, at, before, goal + 16, entries, firsts)
        if reason or not n:
            return False
        count += n
        before = following - int(entries[n - 1] & ADDRESS_BITS)
        at = following
    return True


def _goes_on(reader: PieceReader, at: int, goal: int) -> int | None:
    """Returns where chunks continue after memory that is not malloc's; ``goal``: top or end."""
    step = 1 << 20
    for start in range(at, min(goal, at + _SEARCH_BYTES), step):
        heads = reader.words(start, min(step, goal - start) & ~15)[1::2]
        likely = (heads & np.uint64(15) == 1) & (heads >= 32) & (heads < np.uint64(64 << 20))
        for n in np.flatnonzero(likely)[: 1 << 12].tolist():
            if _is_chain(reader, start + 16 * n, goal):
                return start + 16 * int(n)
    return None
