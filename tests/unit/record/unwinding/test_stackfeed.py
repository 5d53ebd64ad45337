"""Stacks that the probes could not finish, between their ring and their process."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import Miss, SentStacks
from tracelloc.model.stacks import StackFlag
from tracelloc.record.unwinding import stacksource
from tracelloc.record.unwinding.stacksource import StackSource

IMAGE = 3
# The stack memory of a miss: it is copied in these sizes.
SMALL, LARGE = bytes(5 << 12), bytes(17 << 12)
WAITING_BYTES = 80 << 20
AT_ONCE = 1024  # How many are taken from the ring at once


class Sender:
    """Has some misses to take."""

    def __init__(self, count: int, stack: bytes) -> None:
        self.left, self.stack = count, stack

    def take_misses(self, most: int) -> list[Miss]:
        count = min(most, self.left)
        self.left -= count
        return [Miss(n, 0, IMAGE, 0, (), 0, self.stack, 0) for n in range(count)]

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        return []


def work(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many were hastened and finished, after each time that some were finished."""
    hastened, finished = list[Miss](), list[Miss]()
    counts = []

    def finish(_source: object, misses: Sequence[Miss]) -> None:
        finished.extend(misses)
        counts.append((len(hastened), len(finished)))

    # However slow the machine is.
    monkeypatch.setattr(stacksource, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(StackSource, "catch_up", lambda _source: None)
    monkeypatch.setattr(StackSource, "supply_rows", lambda _, misses: hastened.extend(misses))
    monkeypatch.setattr(StackSource, "finish", finish)
    stacks = stacksource.StackFeed(cast("Any", sender), finishes=True)
    stacks.add(IMAGE, cast("Any", SimpleNamespace(pid=42)))
    stacks.take_stacks()
    return counts


def test_the_ring_is_emptied_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it fills up with stacks that wait for the same rows, and others are lost."""
    counts = work(Sender(4000, SMALL), monkeypatch)
    assert [hastened for hastened, _ in counts[:4]] == [1024, 2048, 3072, 4000]
    assert counts[-1] == (4000, 4000)
    counts = work(Sender(20_000, LARGE), monkeypatch)
    most = max(hastened - finished for hastened, finished in counts)
    assert AT_ONCE < most < WAITING_BYTES // len(LARGE) + AT_ONCE
    assert counts[-1] == (20_000, 20_000)


def sent(*rows: tuple[int, StackFlag, list[int]]) -> SentStacks:
    ids, flags, frames = zip(*rows, strict=True)
    depths = np.array([len(each) for each in frames], np.int64)
    columns = np.array(ids, np.uint64), np.array(flags, np.uint16), depths
    return SentStacks(*columns, np.concatenate(frames).astype(np.uint64))


def test_only_wanted_stacks_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for a later call, except those that the wanted ones refer to."""
    none, placed = StackFlag(0), StackFlag.PLACED
    early = sent((10, none, [1, 2]), (11, none, [3]), (12, placed, [10, 7, 8]))
    late = sent((13, placed, [11, 7, 8]), (14, none, [5, 6, 7]))
    rings = [[(IMAGE, early)], [(IMAGE, late)], [], []]
    stored = list[int]()
    monkeypatch.setattr(StackSource, "store_sent", lambda _, new: stored.extend(new.ids.tolist()))
    stacks = Stacks()
    source = Mock(_stacks=stacks, are_among=partial(StackSource.are_among, Mock(_stacks=stacks)))
    feed = stacksource.StackFeed(Mock(take_stacks=Mock(side_effect=rings)), finishes=False)
    feed.add(IMAGE, source)
    feed.take_stacks(set())
    assert stored == []
    feed.take_stacks(set(stacks.indices(np.array([12, 14], np.uint64)).tolist()))
    assert stored == [10, 12, 14]
    feed.take_stacks(set(stacks.indices(np.array([13], np.uint64)).tolist()))
    assert stored[3:] == [11, 13]
    feed.take_stacks()
    assert len(stored) == 5
