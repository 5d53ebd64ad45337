"""Java's heap, by the counters that a JVM publishes for jstat, and has mapped.

Format: hsperfdata 2.0 (src/hotspot/share/runtime/perfMemory.hpp and perfData.hpp): a header, then
entries with a name and a value. The JVM updates most of them when it collects garbage.
"""

import re
import struct
from collections.abc import Sequence
from typing import Final

from tracelloc.model.heapusage import RuntimeFigures
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.regions import MappingUsage

_PATH: Final = re.compile(r"/hsperfdata_[^/]+/\d+$")
_MOST_BYTES: Final = 1 << 20
_MOST_ENTRIES: Final = 1 << 12
_MAGIC: Final = b"\xca\xfe\xc0\xc0\x01\x02"  # Little-endian, version 2
_COUNTS: Final = struct.Struct("<ii")  # Where the first entry is, and how many there are
_COUNTS_AT: Final = 24
_ENTRY: Final = struct.Struct("<iii4Bi")  # Bytes, name, length of a vector, type, …, data
_LONG: Final = ord("J")
_HEAP: Final = re.compile(
    r"sun\.gc\.generation\.[01]\.(?:space\.\d\.(used)|(capacity)|(maxCapacity))"
)
_PAGE: Final = 4096  # G1 adds 8 or 24 bytes to its figures
_GRANULE: Final = 1 << 20  # What the JVM may have committed since its last collection
_NODE: Final = 64 << 20  # Address space that is reserved at a time for data on classes


def _counters(memory: RemoteMemory, mappings: Sequence[MappingUsage]) -> dict[str, int]:
    """Returns the JVM's numeric counters by name; none unless all are valid."""
    mapped = next((m for m in mappings if _PATH.search(m.path)), None)
    if mapped is None or mapped.end - mapped.start > _MOST_BYTES:
        return {}
    data = memory.process.read_memory(mapped.start, mapped.end - mapped.start)
    found: dict[str, int] = {}
    try:
        at, count = _COUNTS.unpack_from(data, _COUNTS_AT)
        if not data.startswith(_MAGIC) or not 0 < count <= _MOST_ENTRIES:
            return {}
        for _ in range(count):
            size, name, _, kind, _, _, _, value = _ENTRY.unpack_from(data, at)
            if size < _ENTRY.size or not 0 < name < value < size:
                return {}
            if kind == _LONG:
                text = data[at + name : at + value].partition(b"\0")[0].decode("ascii")
                found[text] = max(0, int.from_bytes(data[at + value : at + value + 8], "little"))
            at += size
    except (struct.error, UnicodeDecodeError):
        return {}
    return found


def java_figures(memory: RemoteMemory, mappings: Sequence[MappingUsage]) -> RuntimeFigures | None:
    """Returns Java's heap by the JVM's own counters; None if there are none."""
    counters = _counters(memory, mappings)
    found: dict[str, list[int]] = {"used": [], "capacity": [], "maxCapacity": []}
    for name, value in counters.items():
        if match := _HEAP.fullmatch(name):
            found[match[match.lastindex or 0]].append(value)
    limits = found["maxCapacity"]
    # Each of G1's generations may take the whole heap.
    limit = max(limits, default=0) if any(each % _PAGE for each in limits) else sum(limits)
    if not limit:
        return None
    return RuntimeFigures(
        "Java heap", sum(found["used"]), sum(found["capacity"]) & -_PAGE, limit & -_PAGE,
        counters.get("sun.gc.metaspace.used", 0), counters.get("sun.gc.metaspace.capacity", 0),
    )  # fmt: skip


def java_heap(memory: RemoteMemory, mappings: Sequence[MappingUsage]) -> list[tuple[int, int]]:
    """Returns the range of Java's heap: as long as its limit."""
    figures = java_figures(memory, mappings)
    return [] if figures is None else _stretches(mappings, figures.limit_bytes)[:1]


def java_metaspace(memory: RemoteMemory, mappings: Sequence[MappingUsage]) -> list[tuple[int, int]]:
    """Returns the ranges of data on classes: the space of compressed pointers, and others. The
    others are stretches as long as the JVM reserves, with about as much as it says in use.
    """
    counters = _counters(memory, mappings)
    if not counters:
        return []
    space = "sun.gc.compressedclassspace."
    committed = counters.get("sun.gc.metaspace.capacity", 0) - counters.get(f"{space}capacity", 0)
    most, nodes, total = committed + committed // 4 + _GRANULE, [], 0
    for start, end in _stretches(mappings, _NODE):
        size = sum(
            m.end - m.start for m in mappings if start <= m.start < end and m.rights[0] == "r"
        )
        # An arena of glibc has the same size, and is aligned to it.
        if start % _NODE and size <= most:
            nodes.append((start, end))
            total += size
    found = _stretches(mappings, counters.get(f"{space}maxCapacity", 0))[:1]
    return found + nodes if committed * 3 // 4 <= total <= most else found


def _stretches(mappings: Sequence[MappingUsage], size_bytes: int) -> list[tuple[int, int]]:
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
