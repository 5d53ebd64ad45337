"""Loops over a heap that lies, groups of sizes, and reading a process whose threads end."""

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracelloc.errors import TargetError
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk import jemalloc
from tracelloc.record.heapwalk.chunks import ListReader, follow_chunks
from tracelloc.record.heapwalk.kinds import bounds_of, size_groups
from tracelloc.record.heapwalk.walk import while_alive
from tracelloc.record.heapwalk.walked import Arena, BlockState, NotWalkableError
from tracelloc.record.process.procfs import Process

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


def test_states_stand_in_the_next_header() -> None:
    words = chunk(32) + chunk(48) + chunk(64, previous=48, used_before=False)
    assert follow(words) == (
        [BASE | BlockState.IN_USE, BASE + 32 | BlockState.FREE, BASE + 80 | BlockState.IN_USE],
        144, 0, True,
    )  # fmt: skip


def test_the_chunk_before() -> None:
    """Its state and size are those of the piece before."""
    assert follow(chunk(32, previous=96, used_before=False), before=96)[2:] == (0, False)
    assert follow(chunk(32, previous=80, used_before=False), before=96)[2:] == (3, True)


@pytest.mark.parametrize(
    ("word", "reason"),
    [(1, 1), (16, 3), (25, 1), (41, 2), (1 << 40 | 1, 2), ((1 << 64) - 15, 2), (35, 2)],
)
def test_impossible_sizes(word: int, reason: int) -> None:
    found = follow([*chunk(32), 0, word, 0, 0])
    assert found[:3] == ([BASE | BlockState.IN_USE], 32, reason)


def test_the_end_of_a_heap() -> None:
    entries, following, reason, _ = follow([*chunk(32), 0, 17, 0, 1])
    assert entries == [BASE | BlockState.IN_USE, BASE + 32 | BlockState.OWN]
    assert (following, reason) == (64, 0)


def test_random_memory_never_leads_outside() -> None:
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


def test_lists_that_never_end() -> None:
    """A circle, links out of bounds and to pages that are not there."""
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
    assert lists.absent == 0
    assert lists.follow(base + 48, 32, False, 0, *limits, found) == (1, False)
    assert lists.absent == 1
    for descriptor in descriptors:
        os.close(descriptor)


def test_sizes_are_differences() -> None:
    entries = np.array(
        [BASE | 1, BASE + 32, BASE + 96 | 7, BASE + 4096 | 5, BASE + 8192 | 7], np.uint64
    )
    arena = Arena("main arena", MallocLibrary.GLIBC, entries, 4192)
    assert arena.sizes.tolist() == [32, 64, 0, 4096, 0]
    assert arena.seen_bytes == 4192


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


def test_every_size_lies_within_its_group() -> None:
    sizes = np.arange(1, 1 << 20, 7, dtype=np.uint64)
    groups = size_groups(sizes)
    assert np.all(np.diff(groups.astype(np.int64)) >= 0)
    for size, group in zip(sizes[::97].tolist(), groups[::97].tolist(), strict=True):
        least, most = bounds_of(group)
        assert least <= size <= most


PID = 70


class Proc:
    """A /proc with one process, whose main thread has ended."""

    def __init__(self, root: Path, threads: list[int]) -> None:
        self.root = root
        for thread in (PID, *threads):
            self._add(thread, threads)
        for thread in threads:
            for each in (PID, *threads):
                (root / f"{each}/task/{thread}/exe").symlink_to("/bin/true")

    def _add(self, thread: int, threads: list[int]) -> None:
        folder = self.root / str(thread)
        for each in (PID, *threads):
            (folder / f"task/{each}").mkdir(parents=True)
        (folder / "stat").write_text(f"{thread} (a) {'Z' if thread == PID else 'S'} 1")
        (folder / "maps").write_text("" if thread == PID else "1000-2000 r--p 0 00:00 0\n")

    def end(self, thread: int) -> None:
        for each in self.root.glob(f"*/task/{thread}"):
            (each / "exe").unlink()
            each.rmdir()
        for name in ("maps", "stat"):
            (self.root / f"{thread}/{name}").unlink()


def read(root: Path, threads: list[int], ends: int, error: Exception) -> str:
    """Reads while so many threads end, each with an error."""
    proc, left = Proc(root, threads), threads[:ends]

    def through(thread: Process) -> str:
        if left:
            assert thread.pid == left[0]
            proc.end(left.pop(0))
            raise error
        return f"read through {thread.pid}"

    return while_alive(Process(PID, root), through)


@pytest.mark.parametrize(
    "error", [ProcessLookupError(), TargetError("no process"), NotWalkableError("no heap")]
)
def test_another_thread_takes_over(tmp_path: Path, error: Exception) -> None:
    assert read(tmp_path, [71, 72, 73], 2, error) == "read through 73"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ProcessLookupError(), "process 70 has ended"),
        (TargetError("there is no process 72"), "there is no process 72"),
    ],
)
def test_the_process_ends(tmp_path: Path, error: Exception, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        read(tmp_path, [71, 72], 2, error)


def test_a_heap_that_can_not_be_walked(tmp_path: Path) -> None:
    Proc(tmp_path, [71])

    def through(_thread: Process) -> None:
        raise NotWalkableError("no heap")

    with pytest.raises(NotWalkableError, match="no heap"):
        while_alive(Process(PID, tmp_path), through)


@pytest.mark.parametrize("at", [0, (1 << 20) - 4, (1 << 20) + 1, None])
def test_files_that_have_jemalloc(at: int | None, tmp_path: Path) -> None:
    """Its messages are found wherever they are; what can't be read may have them."""
    path, content = tmp_path / "program", bytearray(3 << 20)
    if at is not None:
        content[at : at + 10] = b"<jemalloc>"
    path.write_bytes(content)
    mapping: Any = SimpleNamespace(file_id=("8:1", at), path=str(path))
    process: Any = SimpleNamespace(open_mapping=lambda _: os.open(path, os.O_RDONLY))
    assert jemalloc._may_have_it(process, mapping) == (at is not None)
    unread: Any = SimpleNamespace(file_id=("8:2", at), path=str(path))
    process.open_mapping = lambda _: os.open(tmp_path, os.O_RDONLY)
    assert jemalloc._may_have_it(process, unread)
