"""Heaps of runtimes in made-up memory: as runtimes lay it out, and as a hostile program may."""

import random
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from tracelloc.record.heapwalk.pieces import AddressRuns, merged
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.regions import MappingUsage
from tracelloc.record.runtimes import ownheaps

KIB, MIB = 1 << 10, 1 << 20
BASE, SIZE = 0x7F0000000000, 8 << 20


class MadeUpMemory:
    """Words of resident memory at `BASE`; reading others fails."""

    def __init__(self) -> None:
        self.words = np.zeros(SIZE // 8, np.uint64)

    def put(self, at: int, *words: int) -> None:
        self.words[at // 8 : at // 8 + len(words)] = np.array(words, np.uint64)

    def resident_runs(
        self, areas: Iterable[tuple[int, int]], _: Callable[[], bool]
    ) -> Iterator[tuple[int, int, int]]:
        for number, (start, end) in enumerate(areas):
            if max(start, BASE) < min(end, BASE + SIZE):
                yield number, max(start, BASE), min(end, BASE + SIZE)

    def read(self, addresses: U64, size_bytes: int) -> tuple[U64, Mask]:
        rows = np.zeros((len(addresses), size_bytes // 8), np.uint64)
        was_read = np.zeros(len(addresses), np.bool_)
        for number, address in enumerate(addresses.tolist()):
            if address % 8 == 0 and BASE <= address <= BASE + SIZE - size_bytes:
                at = (address - BASE) // 8
                rows[number], was_read[number] = self.words[at : at + size_bytes // 8], True
        return rows, was_read


def heaps(memory: MadeUpMemory, file: str) -> dict[str, list[tuple[int, int]]]:
    """The heaps found in a program with this file, from `BASE`."""
    code = MappingUsage(4096, 8192, "r-xp", 0, "fe:00", 5, file, *[0] * 7, False, False)
    half = SIZE // 2
    more = 0, "00:00", 0, "", half, half, *[0] * 5, False, False
    halves = [MappingUsage(at, at + half, "rw-p", *more) for at in (BASE, BASE + half)]
    found = ownheaps.runtime_heaps(memory, [code, *halves])  # type: ignore[arg-type]
    return {title: [(start - BASE, end - BASE) for start, end in ranges] for title, ranges in found}


def test_pages_and_arenas() -> None:
    memory = MadeUpMemory()
    for at, size in ((0, 256), (256, 256), (1024, 256), (2048, 1024), (5120, 256)):
        start = BASE + at * KIB
        heap = 0x5000 if at < 5120 else 0x6000  # a page alone proves nothing
        memory.put(at * KIB, size * KIB, 4, heap, start + 0x1148, start + size * KIB)
    assert heaps(memory, "/usr/bin/node") == {
        "V8 heap": [
            (0, 256 * KIB), (256 * KIB, 512 * KIB), (1024 * KIB, 1280 * KIB), (2 * MIB, 3 * MIB),
        ]
    }  # fmt: skip
    assert heaps(memory, "/usr/bin/ruby") == {}
    # Two in a ring, one that is not, and a larger block in the heap's list.
    memory = MadeUpMemory()
    heap, first, second = BASE + 0x40, BASE, BASE + 4 * MIB
    memory.put(0, heap, second, second)
    memory.put(4 * MIB, heap, first, first)
    memory.put(6 * MIB, heap, first, first)
    memory.put(0x40 + 304, BASE + 4096, first)
    memory.put(4096, BASE + 2 * MIB, MIB, 0)
    assert heaps(memory, "/usr/sbin/php-fpm8.2") == {
        "PHP heap": [(0, 2 * MIB), (4 * MIB, 6 * MIB), (2 * MIB, 3 * MIB)]
    }
    memory = MadeUpMemory()
    for number in range(3):
        page, description = number * 16 * KIB + 2 * MIB, 6 * MIB + number * 128
        memory.put(page, BASE + description)
        memory.put(description, 40, 400, BASE + page + 16)
    assert heaps(memory, "/usr/lib/libruby-3.1.so.3.1") == {
        "Ruby heap pages": [
            (2 * MIB + n * 16 * KIB, 2 * MIB + (n + 1) * 16 * KIB) for n in range(3)
        ]
    }
    memory = MadeUpMemory()
    memory.put(0, MIB + 1, 0, 0, 0x5000)
    memory.put(MIB, 2 * MIB + 3, 0, 0, 0x5000)
    memory.put(3 * MIB, 2 * MIB + 1, 0, 0, 0x5000)  # beyond the mapping
    assert heaps(memory, "/usr/lib/erlang/bin/beam.smp") == {
        "Erlang carriers": [(0, MIB), (MIB, 3 * MIB)]
    }
    first = MappingUsage(
        0xC000000000, 0xC000400000, "rw-p", 0, "", 0, "", *[4096] * 2, *[0] * 5, False, False
    )
    none = SimpleNamespace()
    found = dict(ownheaps.runtime_heaps(none, [first]))  # type: ignore[arg-type]
    assert found == {"Go heap": [(0xC000000000, 0xC000400000)]}
    moved = first._replace(start=first.start + 4096)
    assert dict(ownheaps.runtime_heaps(none, [moved])) == {}  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_what_a_program_may_lay_out() -> None:
    """Ranges are such that they can be looked up, whatever there is."""
    chosen = random.Random(5)
    some = [
        0, 1, 3, 4097, 8193, 1 << 18, 1 << 21, BASE, BASE + 0x40, BASE + (1 << 21), (1 << 64) - 1,
        (1 << 64) - 4096, 1 << 63, 1 << 39, SIZE, BASE + SIZE - 8,
    ]  # fmt: skip
    for _ in range(30):
        memory = MadeUpMemory()
        for at in range(0, SIZE, 4096):
            memory.put(at, *chosen.choices(some, k=5))
        for number in range(4):
            around = [BASE + (number + step) % 4 * 2 * MIB for step in (1, -1)]
            memory.put(number * 2 * MIB, BASE + 0x40, *around)
        memory.put(0x40 + 304, BASE + 4096, BASE)
        memory.put(4096, (1 << 64) - (chosen.randrange(1, 9) << 21), (1 << 40) - 1, BASE + 4096)
        for file in ("node", "php", "ruby", "beam.smp"):
            for ranges in heaps(memory, file).values():
                AddressRuns.from_ranges(merged((BASE + a, BASE + b) for a, b in ranges))
