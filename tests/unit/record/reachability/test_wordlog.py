"""Words kept while a heap is walked, and searches for some of its blocks only."""

import numpy as np
import pytest

from tests.marked import bits_of, finished, plainly
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import Arena, BlockState, WalkedHeap
from tracelloc.record.heapwalk.chunks import blocks_between, words_within
from tracelloc.record.heapwalk.ranges import BlockRanges, are_in_use
from tracelloc.record.process.memory import U64
from tracelloc.record.reachability.blockbits import select_words, set_bits
from tracelloc.record.reachability.wordlog import LoggedPiece, MemoryArea, WordLog

BASE = 0x7F0000000000
BLOCKS, BLOCK_WORDS, ROOTS = 3000, 8, 50
ANYWHERE = np.array([[BASE, BASE + (1 << 30)], [0, 0]], np.uint64)
NO_BITS = np.zeros(0, np.uint8)


def words_of(*values: int) -> U64:
    return np.array(values, np.uint64)


def graph(seed: int) -> tuple[U64, U64, U64]:
    """Contiguous memory with blocks of many sizes, and gaps: (starts, ends, words)."""
    random = np.random.default_rng(seed)
    sizes = 16 * random.integers(1, BLOCK_WORDS, BLOCKS)
    gaps = 16 * random.integers(0, 2, BLOCKS)
    starts = np.cumsum(sizes + gaps) - sizes
    words = random.integers(0, 1 << 63, int(starts[-1] + sizes[-1]) // 8, np.uint64)
    places = random.integers(0, len(words), BLOCKS)
    tags = random.integers(0, 4, BLOCKS).astype(np.uint64) << np.uint64(60)
    words[places] = random.integers(0, 8 * len(words), BLOCKS, np.uint64) + np.uint64(BASE) | tags
    starts = (starts + BASE).astype(np.uint64)
    return starts, starts + sizes.astype(np.uint64), words


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("are_roots", [True, False])
@pytest.mark.parametrize("is_packed", [True, False])
def test_marking_agrees_with_a_plain_search(seed: int, *, are_roots: bool, is_packed: bool) -> None:
    starts, ends, words = graph(seed)
    bits = bits_of(starts, ends)
    if not are_roots:
        bits.scan(starts[:ROOTS], 8)
    half = len(words) // 2
    for first, some in ((half, words[half:]), (0, words[:half])):
        if is_packed:
            packed = np.empty(len(some) + 256, np.uint64)
            packed = packed[: select_words(some, ANYWHERE, NO_BITS, packed)]
            bits.scan_packed(packed, BASE + 8 * first, are_roots)
        else:
            bits.scan(some, BASE + 8 * first, are_roots)
    reachable = finished(bits, starts)
    places = np.uint64(BASE) + np.uint64(8) * np.arange(len(words), dtype=np.uint64)
    roots = [] if are_roots else list(range(ROOTS))
    assert reachable.tolist() == plainly(starts, ends, places, words, roots, are_roots=are_roots)
    assert 100 < np.count_nonzero(reachable) < BLOCKS - 100


def test_words_that_lead_to_blocks_and_are_kept() -> None:
    starts, ends, words = graph(3)
    wanted = np.arange(0, BLOCKS, 50)
    bits = np.zeros(1 << 12, np.uint8)
    set_bits(starts[wanted], ends[wanted], bits)
    packed = np.empty(len(words) + 256, np.uint64)
    packed = packed[: select_words(words, ANYWHERE, bits, packed)]
    piece = LoggedPiece(BASE, BASE + words.nbytes, packed)
    selected = set(piece.addresses(packed).tolist())
    targets = words & np.uint64((1 << 47) - 1)
    at = np.searchsorted(starts[wanted], targets, side="right") - 1
    needed = np.flatnonzero((at >= 0) & (targets < ends[wanted][at]))
    assert {BASE + 8 * int(place) for place in needed} <= selected
    assert len(needed) <= len(selected) < BLOCKS // 2
    middle = BASE + words.nbytes // 16 * 8
    assert piece.part(BASE, middle).tolist() + piece.part(middle, piece.end).tolist() == (
        packed.tolist()
    )
    assert all(address < middle for address in piece.addresses(piece.part(BASE, middle)).tolist())
    bits = np.zeros(8, np.uint8)
    set_bits(words_of(BASE), words_of(BASE + (1 << 40)), bits)
    assert (bits == 255).all()
    words = np.full(1000, BASE, np.uint64)
    assert select_words(words, ANYWHERE, NO_BITS, np.empty(1000, np.uint64)) == -1
    assert select_words(words, ANYWHERE, NO_BITS, np.empty(1256, np.uint64)) == 1000
    assert select_words(words[:0], ANYWHERE, NO_BITS, np.empty(0, np.uint64)) == 0
    size_bytes = 1 << 16
    areas = [
        MemoryArea(BASE, BASE + 3 * size_bytes, False),
        MemoryArea(BASE + 4 * size_bytes, BASE + 6 * size_bytes, True),
    ]
    log = WordLog([], areas, None)
    words = np.zeros(size_bytes // 8, np.uint64)
    for number in (0, 2, 3, 4, -1):
        log.add(words, BASE + number * size_bytes)
    log.add(words, BASE + 2 * size_bytes + 8)  # beyond its end
    log.add(words[:100], BASE)
    assert [piece.start for piece in log.pieces] == [BASE, BASE + 2 * size_bytes]


def heap() -> WalkedHeap:
    """One of glibc: an arena with two blocks in use, and a mapping."""
    rows = [
        (0, BlockState.IN_USE), (32, BlockState.CACHED), (64, BlockState.IN_USE),
        (128, BlockState.TOP), (1024, BlockState.END),
    ]  # fmt: skip
    mapped = [(4096, BlockState.MAPPED), (8192, BlockState.END)]
    return WalkedHeap(
        [
            Arena("", MallocLibrary.GLIBC, 0).add(
                words_of(*(BASE + at | state for at, state in some))
            )
            for some in (rows, mapped, [])
        ],
        [],
    )


def test_blocks_in_use_and_their_words() -> None:
    offsets = [0, 8, 16, 40, 48, 56, 79, 80, 143, 144, 1024, 4096, 4112, 8200, 9000]
    found = are_in_use(heap(), words_of(*(BASE + at for at in offsets)))
    assert [at for at, used in zip(offsets, found, strict=True) if used] == [
        16, 40, 80, 143, 4112, 8200
    ]  # fmt: skip

    def blocks(*rows: tuple[int, int, int]) -> BlockRanges:
        starts, sizes, overheads = np.array(rows, np.uint64).T.copy()
        starts += np.uint64(BASE)
        return BlockRanges(starts, starts + sizes, overheads.astype(np.uint8))

    all_of_them = BlockRanges.in_use(heap())
    kept = all_of_them.still_in_use(heap())
    assert kept.starts.tolist() == all_of_them.starts.tolist() == [
        BASE + at for at in (16, 80, 4112)
    ]  # fmt: skip
    assert kept.reaches.tolist() == all_of_them.reaches.tolist()
    # Freed; of another size; split; gone.
    others = blocks((48, 32, 8), (80, 48, 8), (96, 32, 8), (4112, 8000, 16), (1 << 20, 64, 8))
    assert len(others.still_in_use(heap()).starts) == 0
    random = np.random.default_rng(5)
    ranges = np.sort(random.choice(1000, 20, replace=False)).astype(np.uint64).reshape(-1, 2)
    words = random.integers(0, 1000, 5000, np.uint64)
    words[:3] = 0, (1 << 64) - 1, (1 << 64) - 8
    for some in (ranges, ranges[:0], ranges[:1]):
        inside = np.zeros(len(words), bool)
        for start, end in some.tolist():
            inside |= (words >= start) & (words < end) & (words % 8 == 0)
        rows = np.empty(len(words) + 1, np.intp)
        count = words_within(words, some, rows)
        assert rows[:count].tolist() == np.flatnonzero(inside).tolist()
    (entries,) = heap().arenas[0].entries()
    rows = np.empty(len(entries), np.intp)
    assert rows[: blocks_between(entries, 32, 32, rows)].tolist() == [0]
    assert rows[: blocks_between(entries, 32, 64, rows)].tolist() == [0, 2]
    assert blocks_between(entries[:0], 32, 64, rows) == 0
