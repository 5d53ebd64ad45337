"""Ranges against a model that keeps every page by itself."""

import random

import numpy as np

from tests.unit.events import records
from tracelloc.heap.ranges import RangeTable
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import EventKind, Events
from tracelloc.model.stacks import StackFlag

PAGE = 4096


def events(*mapped: tuple[EventKind, int, int, int, int]) -> Events:
    """(kind, first page, bytes, stack id, thread)."""
    return records([(kind, page * PAGE, *more) for kind, page, *more in mapped])


def pages_of(table: RangeTable) -> dict[int, int]:
    """Stack by page."""
    return {
        page: each.stack
        for each in table.ranges()
        for page in range(each.start // PAGE, each.end // PAGE)
    }


def test_random_mappings_equal_a_model_of_pages() -> None:
    rng = random.Random(5)
    stacks = Stacks()
    table = RangeTable(stacks)
    indices = stacks.indices(np.arange(1, 9, dtype=np.uint64)).tolist()
    model: dict[int, int] = {}
    for _ in range(4000):
        first, count, stack = rng.randrange(64), rng.randrange(1, 20), rng.randrange(1, 9)
        size = count * PAGE - rng.randrange(PAGE)
        if rng.random() < 0.5:
            table.apply(events((EventKind.MAP, first, size, stack, 1)))
            model.update(dict.fromkeys(range(first, first + count), indices[stack - 1]))
        else:
            failed = rng.random() < 0.3
            table.apply(events((EventKind.UNMAP, first, size, 0, 1)))
            if failed:
                table.apply(events((EventKind.UNMAP_FAILED, first, size, 0, 1)))
                assert pages_of(table) == model
                continue
            for page in range(first, first + count):
                model.pop(page, None)
        assert pages_of(table) == model
        assert table.mapped_bytes - table.unmapped_bytes == len(model) * PAGE
    assert {each.stack: each.size_bytes for each in table.by_stack()} == {
        stack: PAGE * sum(owner == stack for owner in model.values())
        for stack in set(model.values())
    }


def test_what_is_left_and_what_a_child_has() -> None:
    table = RangeTable(Stacks())
    table.apply(events((EventKind.MAP, 10, 5 * PAGE, 7, 3), (EventKind.UNMAP, 12, 1, 0, 4)))
    left, right = table.ranges()
    assert (left.start, left.end, right.start, right.end) == (
        10 * PAGE, 12 * PAGE, 13 * PAGE, 15 * PAGE,
    )  # fmt: skip
    assert {left.birth_ns, right.birth_ns} == {1}
    assert {left.tid, right.tid} == {3}
    stacks = Stacks()
    table = RangeTable(stacks)
    known = stacks.add(11, (1, 2), StackFlag(0))
    table.apply(events((EventKind.MAP, 5, PAGE, 11, 1)))
    child = table.fork()
    other = stacks.add(12, (3, 4), StackFlag(0))
    child.apply(events((EventKind.MAP, 9, PAGE, 12, 2)))
    assert pages_of(child) == {5: known, 9: other}
    assert child.mapped_bytes == 2 * PAGE
    assert pages_of(table) == {5: known}
