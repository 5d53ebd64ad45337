"""Marking what can be reached, and what counts as unreachable after several searches."""

from dataclasses import replace

import numpy as np
import pytest

from tests.marked import bits_of, finished, links_of, plainly, reachable_of
from tests.searches import add_search
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import U64
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.wordlog import searched_areas

BASE = 0x7F0000000000
SIZE = 64
ROOTS = 0x600000000000
LOW = 0x100000000000


def block(number: int) -> int:
    """Address of a block; there are gaps between them."""
    return BASE + 2 * SIZE * number


MIB = 1 << 20


def layout(random: np.random.Generator, count: int, least: int) -> tuple[U64, U64]:
    """Starts and ends of blocks: some beside each other, across MiBs, far, or of some MiB.

    ``least``: the least size and distance.
    """
    starts, ends, at = [], [], 0x7F00_0000_0000
    for _ in range(count):
        at += int(
            random.choice([0, least, 4096, MIB - 64, 5 << 30], p=[0.7, 0.2, 0.05, 0.04, 0.01])
        )
        size = int(random.choice([least, 3 * least, 208, 4096, MIB - 48, MIB, MIB + 16, 9 * MIB],
                                 p=[0.3, 0.3, 0.2, 0.1, 0.03, 0.03, 0.02, 0.02]))  # fmt: skip
        starts.append(at)
        ends.append(at + size)
        at += size
    return np.array(starts, np.uint64), np.array(ends, np.uint64)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_forward", [True, False])
@pytest.mark.parametrize("unit_bits", [3, 4])
def test_bits_agree_with_a_plain_search(seed: int, unit_bits: int, *, is_forward: bool) -> None:
    """Pointers to anywhere within blocks, behind and between them, in any order of memory."""
    random = np.random.default_rng(seed)
    starts, ends = layout(random, 400, 1 << unit_bits)
    sources, targets = random.integers(0, 400, (2, 700))
    places = starts[sources] + (random.random(700) * (ends - starts)[sources]).astype(np.uint64)
    places &= ~np.uint64(7)
    words = starts[targets] + (random.random(700) * 1.02 * (ends - starts)[targets]).astype(
        np.uint64
    )
    order = np.argsort(places) if is_forward else random.permutation(700)
    bits = bits_of(starts, ends, unit_bits=unit_bits)
    bits.scan(starts[:20].copy(), 8)
    for at in order.tolist():
        bits.scan(words[at : at + 1], int(places[at]))
    reachable = finished(bits, starts)
    assert 30 < np.count_nonzero(reachable) < 390
    assert reachable.tolist() == plainly(
        starts, ends, places, words, list(range(20)), are_roots=True
    )
    for low, high in random.integers(0, 400, (60, 2)).tolist():
        start, end = int(starts[min(low, high)]), int(ends[max(low, high)])
        inside = reachable[min(low, high) : max(low, high) + 1]
        assert bits.has_reachable(start + 16 * (inside[0] == 0), end) == inside.any()


def test_blocks_that_lie_or_point_elsewhere() -> None:
    base = 0x7F00_0000_0000
    starts = np.array([base, base + 4096, base + 2 * MIB - 64, base + 8 * MIB], np.uint64)
    ends = np.array([base + 4096, base + 4160, base + 3 * MIB - 64, base + 12 * MIB], np.uint64)
    bits = bits_of(starts, ends)
    inside = np.array([base + 64, base + 2 * MIB, base + 9 * MIB], np.uint64)
    assert bits.cut(inside) == [
        (base, base + 4096), (base + 2 * MIB - 64, base + 3 * MIB - 64),
        (base + 8 * MIB, base + 12 * MIB),
    ]  # fmt: skip
    assert bits.cut(inside) == []
    bits.add(inside, inside + np.uint64(32))
    bits.ask(inside, np.zeros(3, np.uint8))
    # What was the block's own is a root now.
    bits.scan(np.array([base + 80], np.uint64), base + 8)
    bits.scan(np.array([base + 4096], np.uint64), base + 10 * MIB)
    bits.scan(np.array([base + 9 * MIB], np.uint64), base + 2 * MIB)
    assert finished(bits, inside).tolist() == [True, False, False]
    assert reachable_of(bits, starts).tolist() == [True, True, True, True]
    # A chunk that was alone in its bin points to its own header, the end of the block before.
    starts = np.array([BASE, BASE + 0x460, BASE + 0x480], np.uint64)
    ends = np.array([BASE + 0x458, BASE + 0x478, BASE + 0x498], np.uint64)
    for offset in range(0, 0x18, 8):
        bits = bits_of(starts, ends)
        bits.scan(np.array([BASE], np.uint64), ROOTS)
        bits.scan(np.array([BASE + 0x460], np.uint64), ROOTS)
        assert finished(bits, starts).tolist() == [True, True, False]
        for known in (1, 3):  # Whether the block that has the word is one of those searched for
            bits = bits_of(starts[:known], ends[:known])
            bits.scan(np.array([BASE + 0x460], np.uint64), ROOTS)
            bits.scan(np.array([BASE + 0x450], np.uint64), BASE + 0x460 + offset)
            found = finished(bits, starts[:known]).tolist()
            assert found == [offset != 0x10, True, False][:known]
    # As many pointers between blocks are kept as may be.
    starts = np.array([block(n) for n in range(4)], np.uint64)
    for most_edges, expected in ((2, ([3], 1)), (3, ([], 0)), (0, ([1, 2, 3], 1))):
        bits = bits_of(starts, starts + np.uint64(SIZE), most_edges)
        for n in range(3):
            bits.scan(starts[n + 1 : n + 2].copy(), block(n))
        assert (np.flatnonzero(finished(bits, starts)).tolist(), bits.edges_left_out) == expected
    bits = BlockBits(10)
    bits.add(starts, starts + np.uint64(SIZE))
    assert reachable_of(bits, starts).all(), "none was asked about"


def test_areas() -> None:
    maps = """\
55d0a0000000-55d0a0001000 r--p 00000000 08:01 1234 /usr/bin/program
55d0a0001000-55d0a0002000 r-xp 00001000 08:01 1234 /usr/bin/program
55d0a0002000-55d0a0003000 rw-p 00002000 08:01 1234 /usr/bin/program
55d0a1000000-55d0a1021000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000001000-7f0000002000 rw-p 00000000 00:00 0
7f0000002000-7f0000003000 r--p 00000000 00:00 0
7f0000003000-7f0000004000 rw-s 00000000 08:01 99 /var/lib/data base.db
7f0000004000-7f0000005000 rw-s 00000000 00:01 7 /dev/zero (deleted)
7f0000005000-7f0000006000 rw-s 00000000 00:06 8 /dev/dri/card0
7f0000006000-7f0000007000 rw-p 00000000 00:06 8 /dev/dri/card0
7f0000007000-7f0000008000 rw-s 00000000 00:01 9 /memfd:x (deleted)
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
7ffd00100000-7ffd00104000 r--p 00000000 00:00 0 [vvar]
"""
    starts = [f"{area.start:x}" for area in searched_areas(maps)]
    assert starts == [
        "55d0a0002000", "55d0a1000000", "7f0000001000", "7f0000002000", "7f0000004000",
        "7f0000007000", "7ffd00000000",
    ]  # fmt: skip


def blocks(*births_s: int, stack: int = 1) -> Blocks:
    count = len(births_s)
    return Blocks(
        address=np.array([block(at) for at in births_s], np.uint64),
        size=np.full(count, SIZE, np.uint64),
        birth_ns=np.array(births_s, np.uint64) * np.uint64(10**9),
        stack=np.full(count, stack, np.uint32),
        tid=np.ones(count, np.uint32),
    )


def test_searches_have_to_agree() -> None:
    unreachable = UnreachableBlocks()
    one = blocks(5)
    said = []
    for pointed_to in (True, False, False, True, False, True, False, False, False):
        add_search(unreachable, one, np.array([pointed_to]))
        said.append(len(unreachable.blocks))
    assert said == [0, 0, 1, 0, 1, 0, 0, 1, 1]
    newer = UnreachableBlocks()
    add_search(newer, blocks(1), np.array([False]))
    for pointed_to in (False, False, True, True):
        add_search(newer, blocks(1, 5), np.array([True, pointed_to]))
    assert len(newer.blocks) == 0
    unreachable, one = UnreachableBlocks(moves=True), blocks(1)
    lost = []
    for is_pointed_to in (False, False, False, False, True, False, False, False, False):
        add_search(unreachable, one, np.array([is_pointed_to]))
        lost.append(len(unreachable.blocks))
    assert lost == [0, 0, 0, 1, 0, 0, 0, 0, 1]
    unreachable = UnreachableBlocks()
    one, other = blocks(5), blocks(5)
    other.birth_ns += np.uint64(1)
    add_search(unreachable, one, np.array([False]))
    add_search(unreachable, other, np.array([False]))
    assert len(unreachable.blocks) == 0
    table = UnreachableBlocks().table(np.array([0, 10]))
    assert [column.tolist() for column in table.lost_blocks_of(np.array([0, 9]), 1)] == [
        [[0.0], [0.0]], [[0.0], [0.0]], [0.0, 0.0],
    ]  # fmt: skip


def test_blocks_freed_after_all_and_sums() -> None:
    unreachable = UnreachableBlocks()
    kept, gone, other = blocks(*range(20)), blocks(*range(30, 33)), blocks(50, 51, stack=2)
    for _ in range(2):
        add_search(unreachable, Blocks.concatenate([kept, gone, other]), np.zeros(25, np.bool_))
    assert len(unreachable.blocks) == 25
    add_search(unreachable, Blocks.concatenate([kept, other]), np.zeros(22, np.bool_))
    assert unreachable.blocks.stack.tolist() == [2, 2]
    unreachable.collects = True
    assert len(unreachable.blocks) == 22
    unreachable.collects = False
    many = Blocks.concatenate([blocks(*range(100, 140)), other])
    for _ in range(2):
        add_search(unreachable, many, np.zeros(42, np.bool_))
    assert len(unreachable.blocks) == 2, "20 more were freed"
    unreachable = UnreachableBlocks()
    some = Blocks.concatenate([blocks(1, 2, 3, 30, stack=3), blocks(40, 41, stack=7)])
    for _ in range(2):
        add_search(unreachable, some, np.array([False, False, False, True, False, False]))
    table = unreachable.table(np.array([0, 10, 20, 50]) * 10**9)
    count, size_bytes, asked = table.lost_blocks_of(np.array([7, 5, 3]), 3)
    assert count.tolist() == [[0, 0, 2], [0, 0, 0], [3, 0, 0]]
    assert size_bytes.tolist() == [[0, 0, 2 * SIZE], [0, 0, 0], [3 * SIZE, 0, 0]]
    assert asked.tolist() == [2, 0, 4]
    order = np.array([5, 3, 7])
    count, size_bytes, asked = table.sums(order, np.array([0, 1, 0]), np.array([3, 3, 1]), 3)
    assert count.tolist() == [[3, 0, 2], [3, 0, 2], [0, 0, 0]]
    assert size_bytes[0].tolist() == [3 * SIZE, 0, 2 * SIZE]
    assert asked.tolist() == [6, 6, 0]
    starts = np.array([BASE, BASE + 128], np.uint64)
    bits = bits_of(starts, starts + np.uint64(64))
    bits.scan(np.array([BASE + 128], np.uint64), BASE + 64, are_roots=False)
    for _ in range(2):
        bits.scan(np.array([BASE], np.uint64), BASE + 128, are_roots=False)
    assert not finished(bits, starts).any()
    assert links_of(bits, starts) == ([0, 0, 1], [0])
    assert links_of(bits, starts[1:]) == ([0, 0], [])


@pytest.mark.parametrize("size", [16, 1008, 1024, 1040, MIB, MIB + 16, 1 << 28, 1 << 41])
@pytest.mark.parametrize("start", [LOW, LOW + 16, LOW + 1008, LOW + (1 << 28) - 16])
def test_blocks_of_any_size_are_found_by_their_first_and_last_byte(start: int, size: int) -> None:
    starts = np.array([start - 32, start, start + size], np.uint64)
    ends = np.append(starts[1:], np.uint64(start + size + 16))
    for address, wanted in (
        (start - 33, []), (start - 32, [0]), (start - 1, [0]), (start, [1]),
        (start + size // 2, [1]), (start + size - 1, [1]), (start + size, [2]),
        (start + size + 15, [2]), (start + size + 16, []),
    ):  # fmt: skip
        bits = bits_of(starts, ends)
        bits.scan(np.array([address], np.uint64), ROOTS)
        assert np.flatnonzero(finished(bits, starts)).tolist() == wanted


@pytest.mark.parametrize(
    "later_s",
    [[0, 10, 20, 30, 40, 50, 60], [0, 10, 20, 30, 40, 55, 70, 90], [0, 40, 70]],
    ids=["the same", "new slices", "merged ones"],
)
def test_searches_and_slices_that_were_merged_since(later_s: list[int]) -> None:
    """What is known of a search is not computed again."""
    rng, count = np.random.default_rng(3), 45
    some = replace(
        blocks(*range(count)),
        size=rng.integers(1, 100, count).astype(np.uint64),
        stack=rng.integers(0, 7, count).astype(np.uint32),
    )
    edges_ns = np.array([0, 10, 20, 30, 40, 50, 60]) * 10**9
    unreachable, fresh = UnreachableBlocks(), UnreachableBlocks()
    for lost in (0, count):
        for each in (unreachable, fresh):
            add_search(each, some, np.zeros(count, np.bool_))
        assert int(unreachable.table(edges_ns).count.sum()) == lost
        assert int(unreachable.last_counts()[1].sum()) == count
    found, wanted = (each.table(np.array(later_s) * 10**9) for each in (unreachable, fresh))
    assert found.count.tolist() == wanted.count.tolist()
    assert found.size_bytes.tolist() == wanted.size_bytes.tolist()
    assert int(found.size_bytes.sum()) == int(some.size.sum())
    add_search(unreachable, some, np.ones(count, np.bool_))
    assert int(unreachable.last_counts()[1].sum()) == 0
