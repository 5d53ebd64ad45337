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
- Java: a JVM has mapped the counters that it publishes for jstat, most of which it updates when it
  collects garbage. They are hsperfdata 2.0: a header, then entries with a name and a value
  (src/hotspot/share/runtime/perfMemory.hpp and perfData.hpp).
"""

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.model.heapusage import RuntimeFigures
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.process.regions import MappingUsage
from tracelloc.record.runtimes.cpython.pools import pool_ranges
from tracelloc.record.runtimes.known import runtime_name

_Mappings = Sequence[MappingUsage]
_Ranges = list[tuple[int, int]]

_JAVA_FILE: Final = re.compile(r"/hsperfdata_[^/]+/\d+$")
_MOST_JAVA_BYTES: Final = 1 << 20
_MOST_JAVA_ENTRIES: Final = 1 << 12
_JAVA_MAGIC: Final = b"\xca\xfe\xc0\xc0\x01\x02"  # Little-endian, version 2
_JAVA_COUNTS: Final = struct.Struct("<ii")  # Where the first entry is, and how many there are
_JAVA_COUNTS_AT: Final = 24
_JAVA_ENTRY: Final = struct.Struct("<iii4Bi")  # Bytes, name, length of a vector, type, …, data
_JAVA_LONG: Final = ord("J")
_JAVA_HEAP: Final = re.compile(
    r"sun\.gc\.generation\.[01]\.(?:space\.\d\.(used)|(capacity)|(maxCapacity))"
)
_JAVA_PAGE: Final = 4096  # G1 adds 8 or 24 bytes to its figures
_JAVA_GRANULE: Final = 1 << 20  # What the JVM may have committed since its last collection
_JAVA_NODE: Final = 64 << 20  # Address space that is reserved at a time for data on classes


def _java_counters(memory: RemoteMemory, mappings: _Mappings) -> dict[str, int]:
    """Returns the JVM's numeric counters by name; none unless all are valid."""
    mapped = next((m for m in mappings if _JAVA_FILE.search(m.path)), None)
    if mapped is None or mapped.end - mapped.start > _MOST_JAVA_BYTES:
        return {}
    data = memory.process.read_memory(mapped.start, mapped.end - mapped.start)
    found: dict[str, int] = {}
    try:
        at, count = _JAVA_COUNTS.unpack_from(data, _JAVA_COUNTS_AT)
        if not data.startswith(_JAVA_MAGIC) or not 0 < count <= _MOST_JAVA_ENTRIES:
            return {}
        for _ in range(count):
            size, name, _, kind, _, _, _, value = _JAVA_ENTRY.unpack_from(data, at)
            if size < _JAVA_ENTRY.size or not 0 < name < value < size:
                return {}
            if kind == _JAVA_LONG:
                text = data[at + name : at + value].partition(b"\0")[0].decode("ascii")
                found[text] = max(0, int.from_bytes(data[at + value : at + value + 8], "little"))
            at += size
    except (struct.error, UnicodeDecodeError):
        return {}
    return found


def java_figures(memory: RemoteMemory, mappings: _Mappings) -> RuntimeFigures | None:
    """Returns Java's heap by the JVM's own counters; None if there are none."""
    counters = _java_counters(memory, mappings)
    found: dict[str, list[int]] = {"used": [], "capacity": [], "maxCapacity": []}
    for name, value in counters.items():
        if match := _JAVA_HEAP.fullmatch(name):
            found[match[match.lastindex or 0]].append(value)
    limits = found["maxCapacity"]
    # Each of G1's generations may take the whole heap.
    limit = max(limits, default=0) if any(each % _JAVA_PAGE for each in limits) else sum(limits)
    if not limit:
        return None
    return RuntimeFigures(
        "Java heap", sum(found["used"]), sum(found["capacity"]) & -_JAVA_PAGE, limit & -_JAVA_PAGE,
        counters.get("sun.gc.metaspace.used", 0), counters.get("sun.gc.metaspace.capacity", 0),
    )  # fmt: skip


def java_heap(memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    """Returns the range of Java's heap: as long as its limit."""
    figures = java_figures(memory, mappings)
    return [] if figures is None else _stretches(mappings, figures.limit_bytes)[:1]


def java_metaspace(memory: RemoteMemory, mappings: _Mappings) -> _Ranges:
    """Returns the ranges of data on classes: the space of compressed pointers, and others. The
    others are stretches as long as the JVM reserves, with about as much as it says in use.
    """
    counters = _java_counters(memory, mappings)
    if not counters:
        return []
    space = "sun.gc.compressedclassspace."
    committed = counters.get("sun.gc.metaspace.capacity", 0) - counters.get(f"{space}capacity", 0)
    most, nodes, total = committed + committed // 4 + _JAVA_GRANULE, [], 0
    for start, end in _stretches(mappings, _JAVA_NODE):
        size = sum(
            m.end - m.start for m in mappings if start <= m.start < end and m.rights[0] == "r"
        )
        # An arena of glibc has the same size, and is aligned to it.
        if start % _JAVA_NODE and size <= most:
            nodes.append((start, end))
            total += size
    found = _stretches(mappings, counters.get(f"{space}maxCapacity", 0))[:1]
    return found + nodes if committed * 3 // 4 <= total <= most else found


def _stretches(mappings: _Mappings, size_bytes: int) -> _Ranges:
    """Returns ranges of a size, from mapping to mapping, which begin with writable memory."""
    found, ends = [], {m.end for m in mappings}
    run_end = 0  # Of the mappings that follow one another
    for before, mapping in zip([*mappings[-2::-1], None], reversed(mappings), strict=True):
        run_end = run_end or mapping.end
        end = mapping.start + size_bytes
        is_memory = not mapping.inode and mapping.rights.startswith("rw")
        if is_memory and mapping.start < end <= run_end and end in ends:
            found.append((mapping.start, end))
        if before is None or before.end != mapping.start:
            run_end = 0
    return found[::-1]


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
