"""Memory of runtimes with heaps of their own, recognised by structures that prove themselves.

- V8: pages begin with (bytes, flags, heap, start and end of the objects): ``BasicMemoryChunk``,
  src/heap/basic-memory-chunk.h, up to V8 11.
- Ruby: pages of 64 KiB begin with the address of a description (``struct heap_page``, gc.c), which
  tells where the page's objects begin.
- HotSpot: ``libjvm.so`` describes its own variables (``gHotSpotVMStructs``, vmStructs.hpp), among
  them the range that is reserved for the heap of Java.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import U64
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.supported import runtime_heap

Ranges = list[tuple[int, int]]

_V8_UNIT: Final = 1 << 18
_RUBY_UNIT: Final = 1 << 16
_RUBY_HEADER_BYTES: Final = 1 << 10  # Most bytes before a page's first object
_PAGE: Final = np.uint64(4095)
# `VMStructEntry`: names of class, field and its type; whether it is static; offset; address.
_ENTRY_BYTES: Final = 48
_MOST_ENTRIES: Final = 1 << 13


def own_memory(space: AddressSpace, reader: PieceReader) -> list[tuple[str, Ranges]]:
    """Returns the memory of runtimes' own heaps: (name, ranges) of each runtime.

    Raises OSError, TargetError and PrivilegeError.
    """
    files = {base_name(region.path) for region in reader.regions() if region.inode}
    found = [
        (name, find(space, reader))
        for pattern, name, find in _RUNTIMES
        if any(map(pattern.match, files))
    ]
    name, ranges = runtime_heap(reader.memory)
    return [*found, (f"{name} (tracelloc objects)", ranges)]


def _units(reader: PieceReader, unit: int) -> U64:
    """Returns the multiples of a power of two that are resident in anonymous memory."""
    areas = [(each.start, each.end) for each in reader.regions() if each.is_anonymous]
    runs = reader.memory.resident_runs(areas, lambda: True)
    found = [
        np.arange(-(-low // unit) * unit, high, unit, dtype=np.uint64) for _, low, high in runs
    ]
    return np.concatenate([np.empty(0, np.uint64), *found])


def _v8(_space: AddressSpace, reader: PieceReader) -> Ranges:
    pages = _units(reader, _V8_UNIT)
    heads, _ = reader.memory.read(pages, 40)
    size, _, heap, start, end = heads.T
    good = (size >= _V8_UNIT) & (size & _PAGE == 0) & (heap > 0) & (pages < start) & (start < end)
    good &= end - pages <= size
    return list(zip(pages[good].tolist(), (pages + size)[good].tolist(), strict=True))


def _ruby(_space: AddressSpace, reader: PieceReader) -> Ranges:
    pages = _units(reader, _RUBY_UNIT)
    heads, _ = reader.memory.read(pages, 8)
    return [
        (at, at + _RUBY_UNIT)
        for at, record in zip(pages.tolist(), heads[:, 0].tolist(), strict=True)
        if (reader.words(record & -8, 64) - np.uint64(at) < _RUBY_HEADER_BYTES).any()
    ]


def _java(space: AddressSpace, reader: PieceReader) -> Ranges:
    module = next((m for m in space.modules if base_name(m.path) == "libjvm.so"), None)
    table = module and space.object(module, "gHotSpotVMStructs")
    entry = reader.word(table) if table else 0
    found: dict[tuple[bytes, bytes], int] = {}
    for at in range(entry, entry + _MOST_ENTRIES * _ENTRY_BYTES, _ENTRY_BYTES) if entry else ():
        owner, field, _, is_static, offset, address = reader.words(at, _ENTRY_BYTES).tolist()
        if not owner:
            break
        key = _text(reader, owner), _text(reader, field)
        found[key] = address if is_static & 0xFF else offset
    heap = found.get((b"Universe", b"_collectedHeap"), 0)
    place = reader.word(heap) + found.get((b"CollectedHeap", b"_reserved"), 0)
    start, size = reader.words(place, 16).tolist()
    return [(start, start + 8 * size)] if start and size < 1 << 50 else []


def _text(reader: PieceReader, address: int) -> bytes:
    raw = reader.words(address & -8, 40).tobytes()
    return raw[address & 7 :].split(b"\0")[0]


_RUNTIMES: Final = (
    (re.compile(r"(lib)?node|chrom|electron"), "heap of V8", _v8),
    (re.compile(r"(lib)?ruby"), "heap of Ruby", _ruby),
    (re.compile(r"libjvm\.so$"), "heap of Java", _java),
)
