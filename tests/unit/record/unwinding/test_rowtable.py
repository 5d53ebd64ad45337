"""The probes' rows as user space keeps them, and sets of addresses."""

import random

import numpy as np
import pytest

from tracelloc.record.abi import (
    KEY_TAG_SHIFT,
    ROW_LASTS,
    ROW_SET_DTYPE,
    ROW_WAYS,
    SALT_BITS,
    TAG_BITS,
)
from tracelloc.record.kernel.rowtable import RowMemory, RowTable
from tracelloc.record.unwinding.addresses import AddressSet

MULTIPLIER = 0x9E3779B97F4A7C15


def u64(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.uint64)


class Space:
    """What the probes are told of an address space: its generation, and the tag for it."""

    def __init__(self, memory: RowMemory) -> None:
        self.tags: dict[int, int] = {}
        self.table = RowTable(memory, self.tags.__setitem__)


def find(sets: np.ndarray, address: int, tag: int) -> int:  # type: ignore[type-arg]
    """As the probes look (``find_row`` in probes/walk_rows.h)."""
    bits = (len(sets) - 1).bit_length()
    key = address | tag << KEY_TAG_SHIFT
    hashed = key & (1 << KEY_TAG_SHIFT + SALT_BITS) - 1
    index = (hashed * MULTIPLIER & (1 << 64) - 1) >> (64 - bits)
    for way in range(ROW_WAYS):
        if int(sets[index]["keys"][way]) == key:
            return int(sets[index]["rows"][way])
    return 0


@pytest.fixture
def sets() -> np.ndarray:  # type: ignore[type-arg]
    return np.zeros(1024, ROW_SET_DTYPE)


def test_rows_are_found_where_the_probes_look(sets: np.ndarray) -> None:  # type: ignore[type-arg]
    memory = RowMemory(sets)
    space = Space(memory)
    table, tag = space.table, space.tags[0]
    addresses = np.unique(np.random.default_rng(1).integers(1, 1 << 47, 900, dtype=np.uint64))
    assert table.insert(addresses, addresses * np.uint64(3), 0)
    found = sum(find(sets, a, tag) == 3 * a for a in addresses.tolist())
    assert found == len(table) == len(addresses) - memory.evictions
    # At less than one row per set, hardly any has to go.
    assert memory.evictions < 10
    assert find(sets, 12345, tag) == 0


def test_programs_and_rows_that_crowd() -> None:
    """The last ones are there, whatever had to go."""
    sets = np.zeros(2, ROW_SET_DTYPE)
    memory = RowMemory(sets)
    space = Space(memory)
    table = space.table
    addresses = np.arange(1, 101, dtype=np.uint64)
    table.insert(addresses, addresses + np.uint64(1000), 0)
    assert len(table) == table.capacity == 8
    assert memory.evictions == 92
    assert len([a for a in range(1, 101) if find(sets, a, space.tags[0]) == a + 1000]) == 8
    memory = RowMemory(np.zeros(1 << 10, ROW_SET_DTYPE))
    addresses = np.arange(0x401000, 0x401000 + 50, dtype=np.uint64)
    for _ in range(40):
        Space(memory).table.insert(addresses, addresses, 0)
    # Half of the room is used: by address alone, 36 of 40 programs would have lost theirs.
    assert memory.evictions < 100
    sets = np.zeros(2, ROW_SET_DTYPE)
    memory = RowMemory(sets)
    space = Space(memory)
    table = space.table
    addresses = np.arange(1, 9, dtype=np.uint64)
    table.insert(addresses, addresses, 0)
    there = [a for a in addresses.tolist() if find(sets, a, space.tags[0]) == a]
    before = len(table), memory.evictions
    table.renew(1, u64(), u64())
    assert len(table) == 0
    table.insert(addresses[:2], addresses[:2], 1)
    assert (len(table), memory.evictions) == (2, before[1])
    assert len(there) == before[0]
    first, generation = space.tags[0], 1
    while space.tags[generation] != first:
        generation += 1
        table.renew(generation, u64(), u64())
    assert generation > 1 << TAG_BITS - SALT_BITS - 1
    assert [find(sets, a, first) for a in range(1, 9)] == [0] * 8


def test_another_generation_keeps_what_is_still_mapped(sets: np.ndarray) -> None:  # type: ignore[type-arg]
    space = Space(RowMemory(sets))
    table = space.table
    table.insert(u64(0x1000, 0x1FFF, 0x2000, 0x5000), u64(1, 2, 3, 4), 0)
    table.renew(7, u64(0x1000, 0x5000), u64(0x2000, 0x6000))
    assert table.generation == 7
    tag = space.tags[0]
    assert space.tags[7] == tag, "walks meanwhile find what is kept"
    assert [find(sets, a, tag) for a in (0x1000, 0x1FFF, 0x2000, 0x5000)] == [1, 2, 0, 4]
    assert len(table) == 3
    assert not table.insert(u64(0x9000), u64(9), 0), "these rows are for what was mapped before"
    assert find(sets, 0x9000, tag) == 0
    table.renew(8, u64(), u64())
    assert len(table) == 0
    assert space.tags[8] != tag


def test_rows_of_code_that_stays_say_so(sets: np.ndarray) -> None:  # type: ignore[type-arg]
    space = Space(RowMemory(sets))
    space.table.set_lasting(u64(0x2000, 0x5000), u64(0x3000, 0x6000))
    addresses = u64(0x1000, 0x2000, 0x2FFF, 0x3000, 0x5FFF, 0x6000)
    space.table.insert(addresses, u64(*[1] * 6), 0)
    found = [find(sets, a, space.tags[0]) & ROW_LASTS for a in addresses.tolist()]
    assert found == [0, ROW_LASTS, ROW_LASTS, 0, ROW_LASTS, 0]
    tags: dict[int, int] = {}
    child = space.table.fork(tags.__setitem__, 0)
    child.renew(1, u64(0x2000), u64(0x3000))
    child.insert(u64(0x5000), u64(1), 1)
    assert tags[0] == space.tags[0] != tags[1]
    assert [find(sets, a, tags[1]) for a in (0x2000, 0x5000)] == [1 | ROW_LASTS] * 2


def test_address_spaces_keep_apart(sets: np.ndarray) -> None:  # type: ignore[type-arg]
    memory = RowMemory(sets)
    one, other = Space(memory), Space(memory)
    one.table.insert(u64(5, 6), u64(5, 60), 0)
    one.table.insert(u64(5), u64(50), 0)  # it is replaced
    assert len(one.table) == 2
    other.table.insert(u64(5), u64(55), 0)
    assert [find(sets, a, one.tags[0]) for a in (5, 6)] == [50, 60]
    assert [find(sets, a, other.tags[0]) for a in (5, 6)] == [55, 0]
    one.table.renew(1, u64(5), u64(6))
    assert [find(sets, a, one.tags[1]) for a in (5, 6)] == [50, 0]
    assert find(sets, 5, other.tags[0]) == 55
    other.table.close()
    assert len(one.table) == 1


def test_tags_are_used_again_but_not_too_early(sets: np.ndarray) -> None:  # type: ignore[type-arg]
    """There are 65,535 of them; a space that never changes keeps its own."""
    memory = RowMemory(sets)
    steady, busy = Space(memory), Space(memory)
    steady.table.insert(u64(5), u64(50), 0)
    busy.table.insert(u64(7), u64(70), 0)
    each = 1 << TAG_BITS - SALT_BITS
    for generation in range(1, 3 * each):
        busy.table.renew(generation, u64(), u64())
        busy.table.insert(u64(7), u64(70), generation)
        assert 0 < busy.tags[generation] < 1 << TAG_BITS
        assert find(sets, 7, busy.tags[generation]) == 70
    tags = list(busy.tags.values())
    assert steady.tags[0] not in tags
    assert all(tag % (1 << SALT_BITS) == tags[0] % (1 << SALT_BITS) for tag in tags)
    for start in range(0, len(tags) - each // 2, each // 2):
        assert len(set(tags[start : start + each // 2])) == each // 2, "one came again too early"
    assert find(sets, 5, steady.tags[0]) == 50


def test_many_addresses() -> None:
    """Sets of them, against Python's."""
    dice = random.Random(1)
    addresses, plain = AddressSet(), set()
    for _ in range(200):
        some = [dice.choice([0, 16, dice.randrange(1 << 47)]) for _ in range(dice.randrange(200))]
        new = np.empty(len(some), np.uint64)
        count = addresses.add(np.array(some, np.uint64), new)
        # Each once, and in the order in which they came.
        assert new[:count].tolist() == [*dict.fromkeys(a for a in some if a and a not in plain)]
        plain.update(a for a in some if a)
        assert len(addresses) == len(plain)
    every = np.empty(len(addresses), np.uint64)
    addresses.copy(every)
    assert sorted(every.tolist()) == sorted(plain)
    assert len(plain) > 5000
