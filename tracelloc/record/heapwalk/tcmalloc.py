"""Walks the heap of gperftools' tcmalloc: all blocks of all spans.

Format: gperftools 2.8 to 2.18, 64 bits, with its usual pages of 8 KiB: src/span.h, pagemap.h,
page_heap.h, central_freelist.h, thread_cache.h. A page map leads to the *span* in which a page is:
blocks of one size class, one large block, or free pages. A span has a list of its free blocks, and
counts those that are not in it: in use, in a thread's cache, or on the way between caches.

All of it proves itself: the page map leads to a span from its first and its last page, lists have
as many blocks as are counted, and all spans have the bytes that the page heap counts.
"""

from typing import Final, NamedTuple

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import I64
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk import pagemaps
from tracelloc.record.heapwalk.arenas import Arena, BlockState, WalkedHeap
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.libraryfiles import find_library, is_named, refusal
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.regions import Region

_NAME: Final = "tcmalloc"
_TEXT: Final = b"TCMALLOC_TRANSFER_NUM_OBJ"
_MOST_RETRIES: Final = 2
_CLASSES: Final = 128
_LEAST_CLASSES: Final = 32
_LIKE: Final = 0.5  # Of the sizes in a cache, those that tell that it is one
_SPAN_BYTES: Final = 48
_LOW32: Final = np.uint64(0xFFFFFFFF)
_LIST_WORDS: Final = 4  # ThreadCache: each class's list, lengths and size; the sum of its bytes
_CACHE_WORDS: Final = _CLASSES * _LIST_WORDS
_CACHE_BYTES: Final = 8 * (_CACHE_WORDS + 16)
_CENTRAL_WORDS: Final = 152  # CentralFreeList: words from its class on, and in it from there on
_SPAN_COUNT, _FREE_COUNT, _SLOTS = 13, 14, 15
_MOST_SLOTS: Final = 64
_USED_SLOTS: Final = _SLOTS + 2 * _MOST_SLOTS
_MOST_CANDIDATES: Final = 1 << 14
_MOST_CACHES: Final = 1 << 16


_PAGE_BITS: Final = 13
_TREE: Final = pagemaps.PageTree(
    _PAGE_BITS, key_bits=18, levels=2, root_bits=17, addresses=lambda rows: rows[:, 0],
    extents=lambda heads: (heads[:, 0] << np.uint64(_PAGE_BITS), heads[:, 1]),
    # Most entries for pages inside a span are of earlier spans.
    most_proven=1 << 14, least_share=0,
)  # fmt: skip
_TO_SUMS: Final = 8 * (13 + (12 << 20 - _PAGE_BITS))  # From the root's end to the page heap's sums


def walk_tcmalloc(reader: PieceReader, tally: ClassTally) -> WalkedHeap | None:
    """Walks tcmalloc's heap; returns None without. Other layouts: NotWalkableError."""
    regions = reader.regions()
    numbers = find_library(reader.memory.process, regions, _NAME, _TEXT)
    named = next((regions[n] for n in numbers if is_named(regions[n], _NAME)), None)
    if named and "debug" in base_name(named.path):
        raise refusal(_NAME, named, "adds headers to blocks")
    for retries in range(_MOST_RETRIES + 1):
        pages = pagemaps.find_page_map(reader, regions, numbers, (_TREE,))
        found = _read(reader, regions, pages) if pages else None
        if found is None:
            if named:
                raise refusal(_NAME, named)
            return None
        heap, entries = found
        heap.retries = retries
        if not heap.arenas[0].unseen:
            break
    tally.add_entries(reader.memory, entries)
    return heap


class _Spans(NamedTuple):
    addresses: U64  # Of their descriptions
    starts: U64
    size_bytes: U64
    lists: U64
    counts: I64  # Blocks that are not in the list
    classes: I64  # 0: one block, or none
    places: I64  # 0: in use, 1: free, 2: free, and returned to the kernel


def _read(
    reader: PieceReader, regions: list[Region], pages: pagemaps.PageMap
) -> tuple[WalkedHeap, U64] | None:
    region = next(r for r in regions if r.start <= pages.root < r.end)
    words = reader.words(region.start, min(region.end - region.start, pagemaps.MOST_DATA_BYTES))
    spans = _spans(reader, pages)
    caches = _caches(reader, regions, spans, words)
    if not caches:
        return None
    heads = np.array([*caches.values()])
    sizes = np.median(_sizes(heads), axis=0).astype(np.uint64)
    count = int(np.argmax(sizes)) + 1
    at = _central(words, count)
    if at is None:
        return None
    central = words[at : at + count * _CENTRAL_WORDS].reshape(count, _CENTRAL_WORDS)
    arena = Arena("all spans", MallocLibrary.TCMALLOC, 0)
    entries = _walked(reader, arena, spans, heads, central)
    at_sums = pages.root + 8 * _TREE.root_entries + _TO_SUMS
    sums = words[(at_sums - region.start) // 8 :][:3].tolist()
    held = [int(spans.size_bytes[spans.places == place].sum()) for place in range(3)]
    if sums != [sum(held), *held[1:]]:
        arena.unseen.append(
            f"its spans have {sum(held):,} bytes, of which {held[1] + held[2]:,} are free, "
            f"by its own sums {sums[0]:,} and {sums[1] + sums[2]:,}"
        )
    if damaged := np.count_nonzero((_sizes(heads) != sizes).any(axis=1)):
        arena.unseen.append(f"{damaged:,} caches of threads have other sizes")
    is_likely = sums[0] < reader.address_end
    arena.system_bytes = max(sums[0] if is_likely else sum(held), arena.seen_bytes)
    start = region.start + 8 * at
    metadata = [
        (start, start + 8 * count * _CENTRAL_WORDS),
        *((cache, cache + _CACHE_BYTES) for cache in caches),
        *((span, span + _SPAN_BYTES) for span in np.unique(pages.leads_to).tolist()),
    ]
    return WalkedHeap([arena], metadata), entries


def _spans(reader: PieceReader, pages: pagemaps.PageMap) -> _Spans:
    """Returns the spans, by address, to which their first and their last page lead."""
    addresses = np.unique(pages.leads_to)
    rows, was_read = reader.memory.read(addresses, _SPAN_BYTES)
    shift = np.uint64(_PAGE_BITS)
    firsts, lengths, bits = rows[:, 0] << shift, rows[:, 1], rows[:, 5]
    lasts = firsts + ((lengths - np.uint64(1)) << shift)
    most = np.uint64(reader.address_end) >> shift
    good = was_read & (rows[:, 0] < most) & (lengths > 0) & (lengths < most)
    for ends in (firsts, lasts):
        at = np.minimum(np.searchsorted(pages.pages, ends), len(pages.pages) - 1)
        good &= (pages.pages[at] == ends) & (pages.leads_to[at] == addresses)
    order = np.flatnonzero(good)
    order = order[np.argsort(firsts[order])]
    is_apart = np.ones(len(order), np.bool_)  # None may reach into the next one
    is_apart[:-1] = lasts[order][:-1] < firsts[order][1:]
    order = order[is_apart]

    def part(shift: int, width: int) -> I64:
        return ((bits[order] >> np.uint64(shift)) & np.uint64((1 << width) - 1)).astype(np.int64)

    return _Spans(
        addresses[order], firsts[order], lengths[order] << shift, rows[order, 4],
        part(0, 16), part(16, 8), part(24, 2),
    )  # fmt: skip


def _walked(reader: PieceReader, arena: Arena, spans: _Spans, heads: U64, central: U64) -> U64:
    """Follows all lists of free blocks (words of caches, of central lists); returns all entries."""
    sizes = np.median(_sizes(heads), axis=0).astype(np.uint64)
    class_bytes = np.where(spans.classes == 0, spans.size_bytes, sizes[spans.classes % _CLASSES])
    used = np.flatnonzero((spans.places == 0) & (class_bytes > 0))
    block_bytes, classes = class_bytes[used], spans.classes[used]
    is_large = classes == 0
    counts = (spans.size_bytes[used] // block_bytes).astype(np.int64)
    pages = pagemaps.BlockPages(spans.starts[used], block_bytes, counts)
    states = pages.states()
    lists = np.where(is_large, np.uint64(0), spans.lists[used])
    own = pages.follow(reader, lists, states, BlockState.FREE, pages=np.arange(len(used)))
    is_sound = own.is_whole & (own.counts + spans.counts[used] == np.where(is_large, 0, counts))
    cached = heads[:, :_CACHE_WORDS].reshape(-1, _CLASSES, _LIST_WORDS)[:, 1 : len(central)]
    wanted = np.tile(sizes[1 : len(central)], len(heads))
    lengths = (cached[:, :, 1] & _LOW32).astype(np.int64)
    kept = pages.follow(
        reader, np.where(lengths > 0, cached[:, :, 0], 0).astype(np.uint64).reshape(-1),
        states, BlockState.CACHED, sizes=wanted,
    )  # fmt: skip
    wrong = np.count_nonzero(~kept.is_whole | (kept.counts != lengths.reshape(-1)))
    slots = central[:, _SLOTS:_USED_SLOTS].reshape(len(central), _MOST_SLOTS, 2)
    is_used = np.arange(_MOST_SLOTS) < (central[:, _USED_SLOTS] & _LOW32)[:, None]
    moved = pages.follow(
        reader, slots[is_used][:, 0], states, BlockState.FREE,
        sizes=sizes[: len(central), None].repeat(_MOST_SLOTS, 1)[is_used],
    )  # fmt: skip
    wrong += np.count_nonzero(~moved.is_whole | (moved.lasts != slots[is_used][:, 1]))
    by_class = [
        np.bincount(classes, weights, len(central))[1 : len(central)]
        for weights in (None, np.where(is_large, 0, own.counts))
    ]
    sums = lengths @ sizes[1 : len(central)].astype(np.int64)
    wrong += np.count_nonzero(sums != (heads[:, _CACHE_WORDS] & _LOW32).astype(np.int64))
    wrong += np.count_nonzero(by_class[0] != central[1:, _SPAN_COUNT])
    wrong += np.count_nonzero(by_class[1] != central[1:, _FREE_COUNT])
    for number, kind in ((np.count_nonzero(~is_sound), "spans"), (wrong, "lists of free blocks")):
        if number:
            arena.unseen.append(f"{number:,} {kind} that changed while they were read")
    entries = pages.entries(states, is_sound, _rest(spans, pages, used, is_sound))
    arena.add(entries)
    return entries


def _rest(spans: _Spans, pages: pagemaps.BlockPages, used: I64, is_sound: Mask) -> U64:
    """Returns entries for free spans, and for what is left behind the blocks of others."""
    free = spans.places > 0
    ends = (pages.starts + pages.counts.astype(np.uint64) * pages.sizes)[is_sound]
    stops = (spans.starts + spans.size_bytes)[used][is_sound]
    return np.concatenate([
        spans.starts[free] | np.uint64(BlockState.FREE),
        (spans.starts + spans.size_bytes)[free] | np.uint64(BlockState.END),
        ends[ends < stops] | np.uint64(BlockState.OWN),
        stops[ends < stops] | np.uint64(BlockState.END),
    ])  # fmt: skip


def _caches(
    reader: PieceReader, regions: list[Region], spans: _Spans, words: U64
) -> dict[int, U64]:
    """Returns the words of threads' caches, by address. Each has all sizes, which ascend."""
    edges = [(r.start, r.end) for r in regions if r.is_anonymous or r.path == "[heap]"]
    inside = np.array(edges, np.uint64).reshape(-1)
    blocks = np.stack([spans.starts, spans.starts + spans.size_bytes], axis=1).reshape(-1)
    tried, sizes = spans.addresses, np.empty(0, np.uint64)
    found: dict[int, U64] = {}
    while len(words) and len(found) < _MOST_CACHES:
        words = np.unique(words[pagemaps.may_lead_on(words, reader) & (words & np.uint64(63) == 0)])
        words = words[np.searchsorted(inside, words, side="right") % 2 == 1]
        words = words[np.searchsorted(blocks, words, side="right") % 2 == 0]
        words = np.setdiff1d(words, tried)[:_MOST_CANDIDATES]
        tried = np.union1d(tried, words)
        none = np.empty((0, _CACHE_BYTES // 8), np.uint64)
        rows = np.vstack([none, *(reader.words(at, _CACHE_BYTES) for at in words.tolist())])
        own = _sizes(rows)
        if not len(sizes):
            steps, count = np.diff(own.astype(np.int64), axis=1), np.argmax(own, axis=1)
            good = ((steps > 0) == (np.arange(_CLASSES - 1) < count[:, None])).all(axis=1)
            good &= (count >= _LEAST_CLASSES) & (own[:, 0] == 0)
            good &= (own & np.uint64(7) == 0).all(axis=1)
            sizes = own[good][:1].reshape(-1)
        # One that is damaged still leads to others.
        good = (own == sizes).mean(axis=1) > _LIKE if len(sizes) else np.zeros(len(own), np.bool_)
        found |= dict(zip(words[good].tolist(), rows[good], strict=True))
        words = rows[good, _CACHE_WORDS:].reshape(-1)
    return found


def _sizes(caches: U64) -> U64:
    return caches[:, 3:_CACHE_WORDS:_LIST_WORDS] & _LOW32


def _central(words: U64, count: int) -> int | None:
    """Returns the index of the words of the central lists, of which each states its class."""
    good = np.ones(max(0, len(words) - count * _CENTRAL_WORDS), np.bool_)
    for number in range(count):
        good &= words[number * _CENTRAL_WORDS :][: len(good)] == number
    return next(iter(np.flatnonzero(good).tolist()), None)
