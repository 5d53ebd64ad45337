"""Lost blocks in an image of glibc's heap that may hold anything, compared with a plain search.

Raises AssertionError if compiled code and the plain search differ, or if a later search, of
unchanged memory, differs from the first.
"""

import numpy as np

from tests.marked import bits_of, finished, links_of, plainly
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import Arena, BlockState, WalkedHeap
from tracelloc.record.heapwalk.chunks import blocks_between, follow_chunks, words_within
from tracelloc.record.heapwalk.ranges import BlockRanges, are_in_use
from tracelloc.record.process.memory import U64
from tracelloc.record.reachability.blockbits import BlockBits, select_words, set_bits
from tracelloc.record.reachability.lostgroups import BlockLinks
from tracelloc.record.reachability.structures import components, gather, led_to
from tracelloc.record.reachability.wordlog import LoggedPiece

BASE = 0x7F0000000000
_MOST_WORDS = 1 << 12
_SPANS = np.array([[BASE, BASE + (1 << 20)], [0, 0]], np.uint64)
_ADDRESS_BITS = np.uint64((1 << 47) - 1)


def honest() -> bytes:
    """Chunks of several sizes: every third is free, and each leads to the third one behind it."""
    sizes = 16 * np.random.default_rng(2).integers(2, 12, 100)
    starts = np.cumsum(sizes) - sizes
    words = np.zeros(int(sizes.sum()) // 8, np.uint64)
    words[0] = BASE + 16 + int(starts[40])
    for number, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        words[start // 8 + 1] = size | (number % 3 != 1)
        words[start // 8 + 2 + number % 2] = BASE + 16 + int(starts[(number + 3) % len(starts)])
        if number % 3 == 0 and number + 1 < len(starts):
            words[(start + size) // 8] = size
    return words.tobytes()


def play(data: bytes) -> None:
    """Walks and searches the image; the first word of it is the only root."""
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)[:_MOST_WORDS].copy()
    entries, firsts = np.empty((2, len(words) + 2), np.uint64)
    end = BASE + words.nbytes
    count, stop, _, _ = follow_chunks(words, BASE, BASE, 0, end, entries, firsts)
    if not count:
        return
    entries[count] = stop | BlockState.END
    heap = WalkedHeap([Arena("", MallocLibrary.GLIBC, 0).add(entries[: count + 1])], [])
    rows = np.empty(count + 1, np.intp)
    assert blocks_between(entries[: count + 1], 0, 64, rows) <= count
    rows = np.empty(len(words) + 1, np.intp)
    inside = rows[: words_within(words, _SPANS[:1], rows)]
    assert np.all((words[inside] >= BASE) & (words[inside] < _SPANS[0, 1]))
    blocks = BlockRanges.in_use(heap)
    assert np.all(blocks.reaches > blocks.starts)
    assert np.all(blocks.reaches[:-1] <= blocks.starts[1:])
    if len(blocks.starts):
        _search(words, blocks, heap)


def _search(words: U64, blocks: BlockRanges, heap: WalkedHeap) -> None:
    bits = bits_of(blocks.starts, blocks.reaches)
    bits.scan(words[:1], 8)
    bits.scan(words, BASE, False)
    reachable = finished(bits, blocks.starts)
    places = np.uint64(BASE) + np.uint64(8) * np.arange(len(words), dtype=np.uint64)
    places[0] = 8
    inside = words.copy()
    inside[(places < BASE) | (places >= int(blocks.reaches[-1]))] &= np.uint64(0)
    roots = np.flatnonzero(
        (blocks.starts <= words[0] & _ADDRESS_BITS) & (blocks.reaches > words[0] & _ADDRESS_BITS)
    )
    assert reachable.tolist() == plainly(
        blocks.starts, blocks.reaches, places, inside, roots.tolist(), are_roots=False
    )
    lost = blocks.select(~reachable).still_in_use(heap)
    assert len(lost.starts) == np.count_nonzero(~reachable)
    filter_bits = np.zeros(64, np.uint8)
    set_bits(lost.starts, lost.reaches, filter_bits)
    packed = np.empty(len(words) + 256, np.uint64)
    packed = packed[: select_words(words, _SPANS, filter_bits, packed)]
    piece = LoggedPiece(BASE, BASE + words.nbytes, packed)
    packed = packed[are_in_use(heap, piece.addresses(packed))]
    again = bits_of(lost.starts, lost.reaches)
    again.scan_packed(packed, BASE, True)
    assert not finished(again, lost.starts).any()
    assert _structures(again, lost.starts) == links_of(bits, lost.starts)[1]


def _structures(bits: BlockBits, starts: U64) -> list[int]:
    """Gathers lost blocks into structures: each is in one. Returns what they lead to, in order."""
    links, count = BlockLinks.among(bits, starts), len(starts)
    begins, targets = links.begins, links.targets
    component = np.empty(count, np.uint32)
    is_led_to = np.zeros(components(begins, targets, component), np.uint8)
    led_to(begins, targets, component, is_led_to)
    firsts = np.array(
        [np.flatnonzero(component == n)[0] for n in np.flatnonzero(is_led_to == 0)], np.uint32
    )
    structure, about = np.empty(count, np.uint32), np.zeros((len(firsts), 4), np.uint32)
    gather(begins, targets, firsts, np.zeros(count, np.uint32), structure, about)
    assert int(about[:, 0].sum()) == count
    assert not count or int(structure.max()) < len(firsts)
    found: list[int] = targets.tolist()
    return found
