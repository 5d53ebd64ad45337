"""Kinds of memory by names and flags of mappings; a JVM's counters: recorded, forged, broken."""

import random
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracelloc.model.heapusage import MemoryPart, RuntimeFigures
from tracelloc.record.heapwalk.accounting import kind_by_name
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import MappingUsage, read_mapping_usages
from tracelloc.record.runtimes.ownheaps import java_figures, java_heap, java_metaspace

KIB, MIB = 1 << 10, 1 << 20


# As Go 1.25, PHP 8, Ruby 3.4, Android and glibc 2.41 (glibc.mem.decorate_maps) name them
@pytest.mark.parametrize(
    ("path", "part", "name"),
    [
        ("[anon: Go: heap]", MemoryPart.RUNTIME, "Go: heap"),
        ("[anon: Go: heap reservation]", MemoryPart.RUNTIME, "Go: heap reservation"),
        ("[anon:zend_alloc]", MemoryPart.RUNTIME, "zend_alloc"),
        ("[anon:Ruby:io_buffer_map_memory]", MemoryPart.RUNTIME, "Ruby:io_buffer_map_memory"),
        ("[anon:dalvik-main space]", MemoryPart.RUNTIME, "dalvik-main space"),
        ("[anon: glibc: pthread stack: 4711]", MemoryPart.STACKS, ""),
        ("[anon: glibc: pthread user stack: 4711]", MemoryPart.STACKS, ""),
        ("[anon: glibc: malloc arena]", MemoryPart.OTHER, "glibc: malloc arena"),
        ("[anon:Gopher's {} %s]", MemoryPart.OTHER, "Gopher's {} %s"),
        ("[stack]", MemoryPart.STACKS, ""),
        ("[anon_shmem:frames]", MemoryPart.SHARED, "frames"),
        ("/memfd:java_heap", MemoryPart.SHARED, "Java heap"),
        ("/memfd:doublemapper", MemoryPart.SHARED, "generated code"),
    ],
)
def test_names(path: str, part: MemoryPart, name: str) -> None:
    assert kind_by_name(path) == (part, name)


@pytest.mark.parametrize("path", ["", "[heap]", "/usr/lib/[anon:a]", "/memfd:java_heap2", "[vdso]"])
def test_what_tells_nothing(path: str) -> None:
    assert kind_by_name(path) is None


SMAPS = """c000000000-c000400000 rw-p 00000000 00:00 0                              [anon: Go: heap]
Size:               4096 kB
Rss:                1024 kB
Pss:                 600 kB
Shared_Clean:          4 kB
Shared_Dirty:        844 kB
Private_Dirty:       176 kB
Anonymous:          1024 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000200000 rw-s 00010000 00:06 77                         /dev/nvidia-uvm
Size:               2048 kB
Rss:                   0 kB
VmFlags: rd wr sh mr mw me ms io pf dd
"""


def test_recorded_mappings(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps").write_text(SMAPS)
    heap, device = read_mapping_usages(Process(7, tmp_path))
    assert (heap.path, heap.rss_bytes, heap.pss_bytes, heap.shared_bytes) == (
        "[anon: Go: heap]", MIB, 600 * KIB, 848 * KIB,
    )  # fmt: skip
    assert not heap.is_of_device
    assert (device.is_of_device, device.offset) == (True, 64 * KIB)


def published(values: dict[str, int]) -> bytes:
    """The file of a JVM's counters."""
    entries = b""
    for name, value in values.items():
        text = name.encode() + b"\0"
        text = text.ljust(-(-(20 + len(text)) // 8) * 8 - 20, b"\0")
        at = 20 + len(text)
        header = struct.pack("<iii4Bi", at + 8, 20, 0, ord("J"), 0, 1, 1, at)
        entries += header + text + struct.pack("<q", value)
    head = b"\xca\xfe\xc0\xc0\x01\x02\x00\x01" + bytes(16) + struct.pack("<ii", 32, len(values))
    return head + entries


G1 = {
    "sun.gc.generation.0.capacity": 61866008, "sun.gc.generation.0.maxCapacity": 536870936,
    "sun.gc.generation.0.space.2.used": 95184, "sun.gc.generation.1.capacity": 364904456,
    "sun.gc.generation.1.maxCapacity": 536870920, "sun.gc.generation.1.space.0.used": 252628992,
    "sun.gc.metaspace.used": 83232, "sun.gc.metaspace.capacity": 327680,
    "sun.gc.compressedclassspace.maxCapacity": 1 << 30,
}  # fmt: skip
SERIAL = {
    "sun.gc.generation.0.capacity": 100 * MIB, "sun.gc.generation.0.maxCapacity": 150 * MIB,
    "sun.gc.generation.1.capacity": 100 * MIB, "sun.gc.generation.1.maxCapacity": 150 * MIB,
    "sun.gc.generation.0.space.0.used": 5,
}  # fmt: skip


def mapping(
    start: int, size: int, rights: str = "rw-p", path: str = "", inode: int = 0
) -> MappingUsage:
    sizes = (size, size, 0, 0, 0, size, 0)
    return MappingUsage(start, start + size, rights, 0, "00:00", inode, path, *sizes, False, False)


def jvm(data: bytes) -> tuple[SimpleNamespace, list[MappingUsage]]:
    """The memory of a JVM whose counters are ``data``, and its mappings."""
    memory = SimpleNamespace(process=SimpleNamespace(read_memory=lambda _, size: data[:size]))
    heap = 0xE0000000
    return memory, [
        mapping(heap, 400 * MIB),
        mapping(heap + 400 * MIB, 100 * MIB, "---p"),
        mapping(heap + 500 * MIB, 12 * MIB, path="/jdk/classes.jsa", inode=5),
        mapping(0x7F0001000000, 320 * KIB),
        mapping(0x7F0001050000, 64 * MIB - 320 * KIB, "---p"),
        mapping(0x7F0021000000, 4 * MIB),
        mapping(0x7F0021400000, 60 * MIB, "---p"),
        mapping(0x7F4000000000, MIB),
        mapping(0x7F4000100000, 63 * MIB, "---p"),
        mapping(0x7F5000000000, MIB),
        mapping(0x7F5000100000, 1023 * MIB, "---p"),
        mapping(0x7F6000000000, 32 * KIB, "rw-s", "/tmp/hsperfdata_a/1", 9),
    ]


def test_counters_of_a_jvm() -> None:
    """`jcmd GC.heap_info` of the same JVM printed 416768K committed of 512M."""
    java = jvm(published(G1))
    assert java_figures(*java) == RuntimeFigures(
        "Java heap", 252724176, 416768 * KIB, 512 * MIB, 83232, 327680
    )
    assert java_heap(*java) == [(0xE0000000, 0xE0000000 + 512 * MIB)]
    # An arena of glibc, aligned to its size, is left out; a bitmap, with too much in use, too.
    assert java_metaspace(*java) == [
        (0x7F5000000000, 0x7F5000000000 + (1 << 30)), (0x7F0001000000, 0x7F0005000000),
    ]  # fmt: skip
    found = java_figures(*jvm(published(SERIAL)))
    assert found == RuntimeFigures("Java heap", 5, 200 * MIB, 300 * MIB, 0, 0)
    memory, mappings = jvm(published(G1))
    assert java_figures(memory, mappings[:-1]) is None
    assert java_heap(memory, mappings[:-1]) == java_metaspace(memory, mappings[:-1]) == []
    too_large = mapping(1 << 40, 2 * MIB, path=mappings[-1].path)
    assert java_figures(memory, [*mappings[:-1], too_large]) is None


def test_what_a_program_may_write_there() -> None:
    """Any bytes are refused, or are figures that are not negative."""
    data, chosen = published(G1), random.Random(7)
    for _ in range(3000):
        broken = bytearray(data[: chosen.choice([len(data), chosen.randrange(len(data))])])
        for _ in range(chosen.randrange(1, 9)):
            if broken:
                broken[chosen.randrange(len(broken))] = chosen.choice([0, 1, 127, 128, 255])
        java = jvm(bytes(broken))
        found = java_figures(*java)
        assert found is None or min(found.used_bytes, found.limit_bytes) >= 0
        assert len(java_heap(*java)) <= 1
        java_metaspace(*java)
