"""Blocks from before tracing in the live table, against a dictionary."""

import random

import numpy as np
import pytest

from tests.unit.events import A, Event, F, R, X, held, records
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable

MIB = 1 << 20
BASE = 0x7F00_0000_0000


def earlier_blocks(random: random.Random, count: int) -> dict[int, tuple[int, int]]:
    """(size, stack) by address: some of 8-byte alignment, large, of many kinds, in sparse parts."""
    blocks, at = {}, BASE
    for _ in range(count):
        size = random.choice([8, 24, 24, 24, 40, 1000, 4096, 4104, random.randrange(16, 5000)])
        at += random.choice([0, 0, 0, 0, 8, 16, 1 << 12, 3 * MIB if random.random() < 0.05 else 0])
        blocks[at] = size, random.randrange(1, 4)
        at += (size + 23) & ~15
    return blocks


def add(table: LiveTable, blocks: dict[int, tuple[int, int]], at_once: int = 100) -> list[bool]:
    addresses = list(blocks)
    added: list[bool] = []
    for at in range(0, len(addresses), at_once):
        some = addresses[at : at + at_once]
        sizes, stacks = zip(*(blocks[address] for address in some), strict=True)
        added += table.add_earlier(
            np.array(some, np.uint64), np.array(sizes, np.uint64), np.array(stacks, np.uint32)
        ).tolist()
    return added


def begun(stacks: int = 4) -> LiveTable:
    """A table that knows some stacks, and has seen an event."""
    table = LiveTable(Stacks())
    table.apply(records([(A, 16 * n, 5, n, 1) for n in range(1, stacks)], first_time=1))
    table.apply(records([(F, 16 * n, 0, 0, 1) for n in range(1, stacks)], first_time=9))
    return table


def check(table: LiveTable, blocks: dict[int, tuple[int, int]]) -> None:
    assert held(table) == blocks
    assert table.count == len(blocks)
    assert table.live_bytes == sum(size for size, _ in blocks.values())
    for stack in range(1, 4):
        sizes = [size for size, its in blocks.values() if its == stack]
        assert int(table.totals.live_bytes[stack]) == sum(sizes)
        assert int(table.totals.live_count[stack]) == len(sizes)
    wanted = [*blocks, 0, BASE + 4, BASE + (1 << 40)]
    stacks = [*(stack for _, stack in blocks.values()), -1, -1, -1]
    assert table.stacks_at(np.array(wanted, np.uint64)).tolist() == stacks
    some, at = [], 0
    while at is not None:
        at, part = table.some_blocks(at, 1 << 63, 70)  # type: ignore[assignment]
        some += part.address.tolist()
    assert sorted(some) == sorted(blocks)


@pytest.mark.parametrize("seed", range(8))
def test_blocks_from_before_tracing(seed: int) -> None:
    chance, table = random.Random(seed), begun()
    blocks = earlier_blocks(chance, 3000)
    assert all(add(table, blocks))
    check(table, blocks)
    assert not any(add(table, blocks)), "they are there already"
    check(table, blocks)
    child, inherited = None, dict[int, tuple[int, int]]()
    for round_number in range(6):
        events: list[Event] = []
        for address in chance.sample(list(blocks), len(blocks) // 4):
            events.append((chance.choice([F, F, R]), address, 0, 0, 7))
            del blocks[address]
            if chance.random() < 0.3:  # its memory is used again
                events.append((A, address, 7777, 2, 7))
                blocks[address] = 7777, 1
        table.apply(records(events, first_time=100 * round_number + 10))
        index = int(table.stacks.indices(np.array([2], np.uint64))[0])
        blocks = {at: (size, index if size == 7777 else its) for at, (size, its) in blocks.items()}
        check(table, blocks)
        if child is not None:
            check(child, inherited)
        else:
            child, inherited = table.fork(), dict(blocks)
    assert table.oddities.unmatched_frees == table.oddities.address_reuses == 0


def test_what_events_say_of_them() -> None:
    table = begun()
    add(table, {BASE: (24, 1), BASE + 32: (24, 1)})
    table.apply(records([(A, BASE, 100, 2, 7)], first_time=20))
    index = int(table.stacks.indices(np.array([2], np.uint64))[0])
    check(table, {BASE: (100, index), BASE + 32: (24, 1)})
    assert table.oddities.address_reuses == 1
    table = begun()
    add(table, {BASE: (24, 1), BASE + 32: (24, 1)})
    table.apply(records([(R, BASE, 0, 0, 7), (X, BASE, 0, 0, 7)], first_time=20))
    check(table, {BASE: (24, 1), BASE + 32: (24, 1)})
    table.apply(records([(F, BASE, 0, 0, 7)], first_time=30))
    check(table, {BASE + 32: (24, 1)})
    table = begun()
    table.watch_addresses(watch=True)
    table.apply(records([(F, BASE, 0, 0, 7), (A, BASE + 64, 9, 1, 7)], first_time=20))
    added = add(table, {BASE: (24, 1), BASE + 32: (24, 1), BASE + 64: (24, 1)})
    assert added == [False, True, False]


def test_a_million_takes_little_memory() -> None:
    """Blocks of four sizes, 176 bytes on average: 4 MiB here, 50 in a hash table."""

    def heap_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    table, count = begun(), 1_000_000
    sizes = np.tile(np.array([104, 152, 200, 248], np.uint64), count // 4)
    addresses = np.uint64(BASE) + np.cumsum(sizes + np.uint64(8)) - sizes
    addresses &= ~np.uint64(15)
    stacks = np.ones(count, np.uint32)
    before = heap_bytes()
    for at in range(0, count, 1 << 16):
        some = slice(at, at + (1 << 16))
        assert table.add_earlier(addresses[some], sizes[some], stacks[some]).all()
    assert heap_bytes() - before < 8 * MIB
    assert table.count == count
