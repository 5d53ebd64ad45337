"""Loops over a heap that lies, groups of sizes, and reading a process whose threads end."""

import mmap
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracelloc.errors import TargetError
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk import jemalloc, libraryfiles, walk
from tracelloc.record.heapwalk.arenas import Arena, BlockState, NotWalkableError
from tracelloc.record.heapwalk.chunks import ArenaTally, ListReader, follow_chunks
from tracelloc.record.heapwalk.classes import bounds_of, size_groups
from tracelloc.record.heapwalk.mallocstate import ArenaState, find_parameters
from tracelloc.record.heapwalk.measuring import PinnedPageSums
from tracelloc.record.heapwalk.ranges import BlockRanges, PackedBlocks
from tracelloc.record.heapwalk.walk import while_alive
from tracelloc.record.process.memory import PAGE_BYTES
from tracelloc.record.process.regions import Region

BASE = 0x10000


def follow(words: list[int], end: int = 0, before: int = 0) -> tuple[list[int], int, int, bool]:
    memory = np.array(words, np.uint64)
    entries, firsts = np.zeros(64, np.uint64), np.zeros(64, np.uint64)
    end = end or BASE + 8 * len(words)
    count, following, reason, is_used = follow_chunks(
        memory, BASE, BASE, before, end, entries, firsts
    )
    return entries[:count].tolist(), following - BASE, reason, is_used


def chunk(size: int, previous: int = 0, *, used_before: bool = True) -> list[int]:
    return [previous, size | used_before, *[7] * (size // 8 - 2)]


def test_chunks_and_what_they_add_up_to() -> None:
    words = chunk(32) + chunk(48) + chunk(64, previous=48, used_before=False)
    assert follow(words) == (
        [BASE | BlockState.IN_USE, BASE + 32 | BlockState.FREE, BASE + 80 | BlockState.IN_USE],
        144, 0, True,
    )  # fmt: skip
    # Its state and size are those of the piece before.
    assert follow(chunk(32, previous=96, used_before=False), before=96)[2:] == (0, False)
    assert follow(chunk(32, previous=80, used_before=False), before=96)[2:] == (3, True)
    entries, following, reason, _ = follow([*chunk(32), 0, 17, 0, 1])
    assert entries == [BASE | BlockState.IN_USE, BASE + 32 | BlockState.OWN]
    assert (following, reason) == (64, 0)
    # What a full heap has left may be 48 bytes.
    entries, following, reason, _ = follow([*chunk(32), *chunk(32), 32, 1])
    assert entries == [BASE | BlockState.IN_USE, BASE + 32 | BlockState.OWN]
    assert (following, reason) == (80, 0)
    entries = [
        (0, 1), (64, 0), (4 * PAGE, 2), (4 * PAGE + 32, 3), (8 * PAGE, 6), (8 * PAGE + 16, 7),
        (9 * PAGE, 0), (12 * PAGE, 7), (13 * PAGE, 1), (13 * PAGE + 32, 4), (20 * PAGE, 7),
    ]  # fmt: skip
    tally, _ = tallied(entries, [(0, 2 * PAGE), (6 * PAGE, 30 * PAGE)])
    assert tally.counts == [2, 2, 1, 1, 1, 0, 1, 2]
    assert tally.sums == [7 * PAGE - 64, 96, 32, 4 * PAGE - 32, 7 * PAGE - 32, 0, 16, 0]
    assert tally.resident == [5 * PAGE - 64, 96, 0, 2 * PAGE, 7 * PAGE - 32, 0, 16, 0]
    # Whole pages that are resident: 1, 6 to 7, 10 to 11, 14 to 19.
    assert tally.trimmable_bytes == (1 + 2 + 2 + 6) * PAGE
    sizes = np.arange(1, 1 << 20, 7, dtype=np.uint64)
    groups = size_groups(sizes)
    assert np.all(np.diff(groups.astype(np.int64)) >= 0)
    for size, group in zip(sizes[::97].tolist(), groups[::97].tolist(), strict=True):
        least, most = bounds_of(group)
        assert least <= size <= most


@pytest.mark.parametrize(
    ("word", "reason"),
    [(1, 1), (16, 3), (25, 1), (41, 2), (1 << 40 | 1, 2), ((1 << 64) - 15, 2), (35, 2)],
)
def test_impossible_sizes(word: int, reason: int) -> None:
    assert follow([*chunk(32), 0, word, 0, 0])[:3] == ([BASE | BlockState.IN_USE], 32, reason)


def test_lists_and_memory_lead_nowhere() -> None:
    source = np.random.default_rng(1)
    for _ in range(300):
        words = source.integers(0, 1 << 63, 512, np.uint64)
        odd = source.random(512) < 0.7
        words[odd] = source.choice(np.array([0, 17, 33, 49, 65, 33 << 4, 1], np.uint64), odd.sum())
        entries, firsts = np.zeros(300, np.uint64), np.zeros(300, np.uint64)
        count, following, _, _ = follow_chunks(words, BASE, BASE, 0, BASE + 4096, entries, firsts)
        addresses = entries[:count] & ~np.uint64(7)
        assert ((addresses >= BASE) & (addresses < BASE + 4096)).all()
        assert (np.diff(addresses.astype(np.int64)) >= 16).all()
        assert BASE <= following <= BASE + 4096
    # A circle, links out of bounds and to pages that are not there.
    page = mmap.PAGESIZE
    words = np.frombuffer(mmap.mmap(-1, 4 * page), np.uint64)
    base = words.ctypes.data
    words[1], words[2] = 33, base + 16  # a chunk that is its own successor
    words[page // 8 + 1], words[page // 8 + 2] = 33, 1 << 46
    words[5], words[6] = 33, base + page * 3 + 16
    descriptors = [os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("mem", "pagemap")]
    lists = ListReader(*descriptors)
    found = np.zeros(100, np.uint64)
    limits = base, base + 4 * page
    assert lists.follow(base + 16, 32, False, 0, *limits, found) == (100, False)
    assert lists.follow(base + page + 16, 32, False, 0, *limits, found) == (1, False)
    assert lists.follow(base + 48, 32, False, 0, *limits, found) == (1, False)
    for descriptor in descriptors:
        os.close(descriptor)


def test_entries_are_packed() -> None:
    # Blocks far apart, one larger than what 32 bits can tell, and one that lies on the border.
    gib = 1 << 30
    rows = [
        (0, 1), (32, 7), (3 * gib, 1), (5 * gib, 0), (5 * gib + 64, 1), (11 * gib, 3),
        (11 * gib + 16, 7), (99 * gib, 5), (100 * gib, 7),
    ]  # fmt: skip
    entries = np.array([BASE + at | state for at, state in rows], np.uint64)
    arena = Arena("main arena", MallocLibrary.GLIBC, 0).add(entries)
    columns = [(some.addresses - BASE, some.sizes, some.states) for some in arena.slices()]
    found = [tuple(row) for column in columns for row in np.stack(column, axis=1).tolist()]
    assert [row for row in found if row[2] != BlockState.END] == [
        (0, 32, 1), (3 * gib, 2 * gib, 1), (5 * gib, 64, 0), (5 * gib + 64, 6 * gib - 64, 1),
        (11 * gib, 16, 3), (99 * gib, gib, 5),
    ]  # fmt: skip
    assert sum(end - start for start, end in arena.stretches()) == 32 + 8 * gib + 16 + gib
    for part in arena.parts:
        assert part.place(part.at(slice(None))).tolist() == list(range(len(part.codes)))
        assert part.place(np.array([0, 1 << 63], np.uint64)).tolist() == [0, len(part.codes)]
    # One is larger than 32 bits can tell; a mapped one does not reach as far as its size.
    sizes = [64, 4096, 1 << 33]
    starts = np.array([BASE + 16, BASE + 8192, BASE + (1 << 20)], np.uint64)
    reaches = starts + np.array([64, 4080, 1 << 33], np.uint64)
    blocks = PackedBlocks(BlockRanges(starts, reaches, np.array([8, 16, 8], np.uint8)))
    assert blocks.size_bytes.tolist() == sizes
    assert blocks.usable_bytes().tolist() == [56, 4080, (1 << 33) - 8]
    assert blocks.starts(np.array([2, 0])).tolist() == [int(starts[2]), BASE + 16]
    inside, outside = (BASE + 79, BASE + 16, BASE + 12271, 1 << 33), (BASE, BASE + 80, BASE + 12272)
    assert blocks.containing(np.array(inside, np.uint64)).tolist() == [0, 1, 2]
    assert not len(blocks.containing(np.array([*outside, (1 << 64) - 1], np.uint64)))
    none = PackedBlocks(BlockRanges(starts[:0], reaches[:0], np.empty(0, np.uint8)))
    assert (len(none), none.containing(starts).tolist()) == (0, [])


@pytest.mark.parametrize("seed", range(8))
def test_packed_entries_are_the_same(seed: int) -> None:
    """In one or two bytes, at multiples of 8 or 16, with steps that are too long for either."""
    source = np.random.default_rng(seed)
    unit, most = (8, 16)[seed % 2], (12, 40, 1 << 15, 1 << 40)[seed // 2]
    steps = unit * source.integers(1, most, 3000)
    addresses = np.cumsum(steps).astype(np.uint64) + np.uint64(BASE)
    entries = addresses | source.choice([0, 1, 2, 5], len(steps)).astype(np.uint64)
    entries[-1] |= np.uint64(7)
    (part,) = Arena("main arena", MallocLibrary.GLIBC, 0).add(entries).parts
    part.codes.set_states(rows := np.arange(100, 2900, 7), 3)
    entries[rows] = addresses[rows] | np.uint64(3)
    assert part.at(slice(None)).tolist() == entries.tolist()
    assert part.at(slice(100, 300)).tolist() == entries[100:300].tolist()
    assert part.at(np.array([0, 77, -1])).tolist() == entries[[0, 77, -1]].tolist()
    wanted = source.integers(0, int(entries[-1]) + 99, 2000).astype(np.uint64)
    assert part.place(wanted).tolist() == np.searchsorted(entries, wanted).tolist()
    before, after = np.empty((2, len(wanted)), np.uint64)
    part.codes.around(wanted, before, after)
    rows = np.searchsorted(addresses, wanted, side="right")
    is_inside = (rows > 0) & (rows < len(entries))
    assert before[is_inside].tolist() == entries[rows[is_inside] - 1].tolist()
    assert after[is_inside].tolist() == entries[rows[is_inside]].tolist()
    assert not before[~is_inside].any()


def tallied(
    entries: list[tuple[int, int]], resident: list[tuple[int, int]]
) -> tuple[ArenaTally, dict[int, int]]:
    """Sums of entries (address, state), and the bytes kept by what pins pages, by address."""
    runs = np.array(resident, np.uint64).reshape(-1, 2) + np.uint64(BASE)
    tally = ArenaTally(runs[:, 0].copy(), runs[:, 1].copy(), True)
    arena = Arena("main arena", MallocLibrary.GLIBC, 0)
    arena.add(np.array([BASE + at | state for at, state in entries], np.uint64))
    pins = PinnedPageSums(
        lambda starts: ((starts - np.uint64(BASE + 16)) // np.uint64(16)).astype(np.int64)
    )
    pins.sum_up(arena, tally)
    return tally, {each.stack * 16: each.kept_bytes for each in pins.pages().by_stack}


PAGE = PAGE_BYTES
PINNED = [
    # One small block in a page; two share what they keep; a page that is not resident.
    ([(0, 1), (64, 0), (PAGE, 7)], [(0, PAGE)], {0: PAGE - 64}),
    ([(0, 1), (64, 0), (2048, 1), (2112, 0), (PAGE, 7)], [(0, PAGE)], {
        0: (PAGE - 128) // 2, 2048: (PAGE - 128) // 2
    }),
    ([(0, 1), (64, 0), (PAGE, 7)], [(0, PAGE // 2)], {}),
    # More than a quarter is in use.
    ([(0, 1), (PAGE // 4 + 16, 0), (PAGE, 7)], [(0, PAGE)], {}),
    # One that begins in a full page counts for the page in which it ends, one that does not, not.
    ([(0, 1), (PAGE - 64, 1), (PAGE + 64, 0), (2 * PAGE, 7)], [(0, 2 * PAGE)], {
        PAGE - 64: PAGE - 64
    }),
    ([(PAGE - 64, 1), (PAGE + 64, 0), (2 * PAGE, 7)], [(0, 2 * PAGE)], {PAGE - 64: PAGE - 64}),
    # Pages in the middle of a large block are full, the last one is not.
    ([(0, 1), (3 * PAGE + 32, 0), (4 * PAGE, 7)], [(0, 4 * PAGE)], {0: PAGE - 32}),
    # Cached and mapped blocks are no pins.
    ([(0, 2), (64, 0), (PAGE, 5), (PAGE + 64, 0), (2 * PAGE, 7)], [(0, 2 * PAGE)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "resident", "pins"), PINNED)
def test_pins(
    entries: list[tuple[int, int]], resident: list[tuple[int, int]], pins: dict[int, int]
) -> None:
    assert tallied(entries, resident)[1] == pins


@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        (8, (8, 8)), (1032, (1032, 1032)), (1033, (1033, 1280)), (1280, (1033, 1280)),
        (1281, (1281, 1536)), (2048, (1793, 2048)), (2049, (2049, 2560)),
        (131056, (114689, 131072)), (1 << 40, ((7 << 37) + 1, 1 << 40)),
    ],
)  # fmt: skip
def test_bounds(size: int, bounds: tuple[int, int]) -> None:
    assert bounds_of(int(size_groups(np.array([size], np.uint64))[0])) == bounds


@pytest.mark.parametrize(
    ("error", "ends", "outcome"),
    [
        (ProcessLookupError(), 2, "read through 73"),
        (TargetError("no process"), 2, "read through 73"),
        (NotWalkableError("no heap"), 2, "read through 73"),
        (NotWalkableError("no heap"), 0, "no heap"),
        (ProcessLookupError(), 3, "process 70 has ended"),
        (TargetError("there is no process 73"), 3, "there is no process 73"),
    ],
)
def test_threads_that_end_while_memory_is_read(
    monkeypatch: pytest.MonkeyPatch, error: Exception, ends: int, outcome: str
) -> None:
    """The main thread has ended before; so many others do while memory is read through them."""
    running = [71, 72, 73]

    class Threads:
        def __init__(self, pid: int, root: object = None) -> None:
            self.pid, self.root = pid, root

        @property
        def thread_id(self) -> int:
            return min(running, default=70)

        def exists(self) -> bool:
            return bool(running)

        def is_running(self, thread_id: int) -> bool:
            return thread_id in running

        def maps_text(self) -> str:
            return "1000-2000 r--p" * (self.pid in (70, *running))

    def through(thread: Any) -> str:
        assert thread.pid == running[0]
        if thread.pid < 71 + ends:
            running.remove(thread.pid)
        elif ends:
            return f"read through {thread.pid}"
        raise error

    monkeypatch.setattr(walk, "Process", Threads)
    try:
        found = while_alive(Threads(70), through)  # type: ignore[arg-type]
    except (TargetError, NotWalkableError) as raised:
        found = str(raised)
    assert found == outcome


@pytest.mark.parametrize("at", [0, (1 << 20) - 4, (1 << 20) + 1, None])
def test_files_that_have_jemalloc(at: int | None, tmp_path: Path) -> None:
    """Its messages are found wherever they are; what can't be read may have them."""
    path, content = tmp_path / "program", bytearray(3 << 20)
    if at is not None:
        content[at : at + 10] = b"<jemalloc>"
    path.write_bytes(content)
    mapping: Any = SimpleNamespace(file_id=("8:1", at), path=str(path))
    process: Any = SimpleNamespace(open_mapping=lambda _: os.open(path, os.O_RDONLY))
    may_have_it = partial(libraryfiles._may_have_it, text=jemalloc._MESSAGE_START)
    assert may_have_it(process, mapping) == (at is not None)
    unread: Any = SimpleNamespace(file_id=("8:2", at), path=str(path))
    process.open_mapping = lambda _: os.open(tmp_path, os.O_RDONLY)
    assert may_have_it(process, unread)


ARENA, HEAP = 0x7F0000002000, 0x1000_0000


@pytest.mark.parametrize(
    ("parameters", "base"),
    [
        ((HEAP, 64, 1032, 7), HEAP),  # tcache_bins, tcache_max_bytes, tcache_count
        # Others have requested memory before malloc did, and a tunable sets the largest size.
        ((HEAP + 0x8000, 8, 128, 7), HEAP + 0x8000),
    ],
)
def test_parameters_of_malloc_are_those_that_fit_the_heap_best(
    parameters: tuple[int, ...], base: int
) -> None:
    arena = ArenaState(ARENA, ARENA + 112, 0, ARENA, 1 << 31, True)
    heap = Region(HEAP, HEAP + (2 << 30), "rw-p", 0, 0, "[heap]")
    words = np.zeros(3 * 4096 // 8, np.uint64)
    around = {(ARENA - 4096, 3 * 4096): words}
    reader: Any = SimpleNamespace(words=lambda *place: around[place])
    assert find_parameters(reader, arena, [heap]) is None
    # An entry of libc's dynamic section, DT_VERDEFNUM, and the next one's tag and value.
    words[40:44] = 0x6FFFFFFD, 39, 0x1E, 16
    words[300:304] = parameters
    found = find_parameters(reader, arena, [heap])
    assert (found.sbrk_base, found.mapped_sum_at) == (base, ARENA - 4096 + 8 * 298)
