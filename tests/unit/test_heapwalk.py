"""Loops over a heap that lies: they end, and never leave the memory that they were given."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.chunks import ListReader, follow_chunks
from tracelloc.record.heapwalk.walked import Arena, BlockState

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
