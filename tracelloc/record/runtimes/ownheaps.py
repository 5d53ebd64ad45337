"""Finds the heaps of language runtimes in a process's memory, without symbols.

Each proves itself: the headers of its pages point to each other, or back to themselves.

- V8 (node 18 and 20): a page of 256 KiB or a large object begins with its size, flags, the heap,
  and where its objects begin and end (src/heap/basic-memory-chunk.h). The heap is the same in all.
- PHP 7 and 8: a chunk of 2 MiB begins with the heap, the next and the previous chunk, which form a
  ring; the heap has a list of what is larger (Zend/zend_alloc.c).
- Ruby: a page of 16 or 64 KiB begins with a pointer to its description, which has one to the page's
  first slot (gc.c).
- Erlang: a carrier begins with its size and flags; the next and the previous one; its allocator
  (erl_alloc_util.h). One follows another in a mapping.
- Go: the first arena is at 0xc000000000, others follow (runtime/malloc.go).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.process.regions import MappingUsage
from tracelloc.record.runtimes.cpython.pools import pool_ranges
from tracelloc.record.runtimes.hotspot import java_heap, java_metaspace
from tracelloc.record.runtimes.known import runtime_name

_Mappings = Sequence[MappingUsage]
_Ranges = list[tuple[int, int]]

_MOST_HEADERS: Final = 1 << 20
_LARGEST: Final = 1 << 40  # Bytes of a page or block, at most
_MOST_BLOCKS: Final = 1 << 12
_MOST_CARRIERS: Final = 1 << 16
_V8_PAGE: Final = 256 << 10
_LEAST_PAGES: Final = 4  # Pages of V8 with the same heap that are no coincidence
_ZEND_CHUNK: Final = 2 << 20
_ZEND_HEAP: Final = 0x40  # Where the heap is in its first chunk
_RUBY_PAGES: Final = 16 << 10, 64 << 10
_GO_ARENAS: Final = 0xC0_0000_0000, 0x1C0_0000_0000


def runtime_heaps(memory: RemoteMemory, mappings: _Mappings) -> Iterator[tuple[str, _Ranges]]:
    """Yields (title, ranges, which may overlap) of the heaps of a process's language runtimes."""
    names = {runtime_name(base_name(path)) for path in {m.path for m in mappings if m.inode}}
    for runtime, title, find in _HEAPS:
        if (runtime is None or runtime in names) and (ranges := find(memory, mappings)):
            yield title, ranges


def _headers(memory: RemoteMemory, mappings: _Mappings, align: int, words: int) -> tuple[U64, U64]:
    """Reads words at multiples of ``align`` in resident memory without a file."""
    areas = [(m.start, m.end) for m in mappings if not m.inode and m.anonymous_bytes]
    runs = [(start, end) for _, start, end in memory.resident_runs(areas, lambda: True)]
    edges = np.array(runs, np.int64).reshape(-1, 2)
    first = -(-edges[:, 0] // align) * align
    counts = np.maximum(0, -((first - edges[:, 1]) // align))
    before = np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(first, counts) + align * (np.arange(len(before)) - before)
    starts = starts.astype(np.uint64)[:_MOST_HEADERS]
    found, was_read = memory.read(starts, 8 * words)
    return starts[was_read], found[was_read]


def _pages(starts: U64, sizes: U64 | int) -> _Ranges:
    return list(zip(starts.tolist(), (starts + np.uint64(1) * sizes).tolist(), strict=True))


def _v8_pages(memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    starts, words = _headers(memory, mappings, _V8_PAGE, 5)
    size, _flags, heap, first, last = words.T
    proven = (size > 0) & (size < _LARGEST) & (size % 4096 == 0) & (first > starts)
    proven &= (first < last) & (first < starts + np.uint64(1 << 16)) & (last <= starts + size)
    heaps, counts = np.unique(heap[proven], return_counts=True)
    proven &= np.isin(heap, heaps[counts >= _LEAST_PAGES])
    return _pages(starts[proven], size[proven])


def _zend_chunks(memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    starts, words = _headers(memory, mappings, _ZEND_CHUNK, 3)
    if not len(starts):
        return []
    heap, following, _before = words.T
    at = np.minimum(np.searchsorted(starts, following), len(starts) - 1)
    proven = (starts[at] == following) & (words[at, 2] == starts) & (words[at, 0] == heap)
    found = _pages(starts[proven], _ZEND_CHUNK)
    for each in np.intersect1d(heap[proven], starts[proven] + np.uint64(_ZEND_HEAP)).tolist():
        (fields,), _ = memory.read(np.array([each], np.uint64), 512)
        (main,) = np.nonzero(fields == each - _ZEND_HEAP)
        block = int(fields[main[0] - 1]) if len(main) and main[0] else 0
        for _ in range(_MOST_BLOCKS):
            if not block:
                break
            start, size, block = memory.read(np.array([block], np.uint64), 24)[0][0].tolist()
            if start % _ZEND_CHUNK or start >> 60 or not 0 < size < _LARGEST:
                break
            found.append((start, start + size))
    return found


def _ruby_pages(memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    starts, words = _headers(memory, mappings, _RUBY_PAGES[0], 1)
    page = words[:, 0]
    edges = np.array([(m.start, m.end) for m in mappings], np.uint64)
    at = np.searchsorted(edges[:, 0], page, side="right") - 1
    likely = (at >= 0) & (page % 8 == 0) & (page + np.uint64(128) <= edges[at, 1])
    starts = starts[likely]
    descriptions, _ = memory.read(page[likely], 128)
    inside = (descriptions > starts[:, None]) & (descriptions <= starts[:, None] + np.uint64(256))
    starts = starts[inside.any(axis=1)]
    return _pages(starts, _RUBY_PAGES[not np.any(starts % np.uint64(_RUBY_PAGES[1]))])


def _erlang_carriers(memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    found: _Ranges = []
    ends = {m.start: m.end for m in mappings if not m.inode and m.anonymous_bytes}
    while ends and len(found) < _MOST_CARRIERS:
        firsts = [(start, start + 4096) for start in sorted(ends)]
        present = [start for _, start, _ in memory.resident_runs(firsts, lambda: True)]
        headers, _ = memory.read(np.array(present, np.uint64), 32)
        carriers = [
            (start, start + (size & ~4095))
            for start, (size, _, _, allocator) in zip(present, headers.tolist(), strict=True)
            if size & 4095 in (1, 3) and allocator and 4096 <= size < ends[start] - start + 4096
        ]
        found += carriers
        ends = {end: ends[start] for start, end in carriers if end < ends[start]}
    return found


def _go_arenas(_memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    first, end = _GO_ARENAS
    found = [(m.start, m.end) for m in mappings if first <= m.start < end and not m.inode]
    return found if found and found[0][0] == first else []


_HEAPS: Final[tuple[tuple[str | None, str, Callable[[RemoteMemory, _Mappings], _Ranges]], ...]] = (
    ("Python", "Python's small objects", lambda memory, _: pool_ranges(memory)),
    ("Java", "Java heap", java_heap),
    ("Java", "Java metaspace", java_metaspace),
    ("JavaScript", "V8 heap", _v8_pages),
    ("PHP", "PHP heap", _zend_chunks),
    ("Ruby", "Ruby heap pages", _ruby_pages),
    ("Erlang", "Erlang carriers", _erlang_carriers),
    (None, "Go heap", _go_arenas),
)
