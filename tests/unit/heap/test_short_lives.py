"""Blocks that their thread frees with its next event are counted at once, with the same outcome."""

import random
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest

from tests.unit.events import A, Event, F, R, X, records
from tracelloc.heap import table
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import EventKind, Events
from tracelloc.model.figures import COLUMNS
from tracelloc.model.process import TemporaryPolicy
from tracelloc.text import NS_PER_S

INNER = EventKind.INNER_FREE
# Changes nothing: frees inside others, of a block that was never seen, by nobody. So many that an
# allocation and what follows them are applied one by one.
NOTHING: list[Event] = [(INNER, 1 << 40, 0, 0, 0)] * 9
MS = NS_PER_S // 1000


def short_life(dice: random.Random, biggest: int) -> list[Event]:
    """What one thread does: mostly it frees a block at once, and else all that may happen."""
    address, tid = 16 * dice.randrange(1, 9), dice.randrange(4)
    born: Event = A, address, dice.choice([0, 1, 24, 500, biggest]), dice.randrange(6), tid
    what = dice.random()
    if what < 0.1:
        return [born]
    if what < 0.2:
        return [(dice.choice([F, R, X]), address, 0, 0, tid)]
    ender = tid if dice.random() < 0.8 else dice.randrange(4)
    end = dice.choice([F, F, F, F, F, R, INNER])
    again: list[Event] = [(X, address, 0, 0, ender)] if end is R and dice.random() < 0.5 else []
    return [born, (end, address, 0, 0, ender), *again]


def short_lives(dice: random.Random, length: int) -> tuple[list[Event], list[int]]:
    """Events of several threads that do so at the same time, and when each is, in ns."""
    events: list[Event] = []
    at_once = dice.choice([1, 2, 4, 12])
    running: list[list[Event]] = []
    while len(events) < length:
        while len(running) < at_once:
            running.append(short_life(dice, 10_000 * len(events)))
        events.append(running[dice.randrange(len(running))].pop(0))
        running = [life for life in running if life]
    steps = [dice.choice([0, 0, 1, 40, 60 * MS, 70 * MS, NS_PER_S]) for _ in events]
    return events, np.cumsum([NS_PER_S, *steps])[1:].tolist()


def outcome(
    events: list[Event], times: list[int], cuts: list[int], kinds: dict[str, Any], **how: bool
) -> dict[str, Any]:
    """All that a table says after it was given the events in batches."""
    table = LiveTable(Stacks(), **kinds)
    whole: Events = records(events)
    whole["time_ns"] = times
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        table.apply(whole[start:end], **how)
    stacks = len(table.stacks)
    census = table.cohorts.census(times[-1], stacks)
    blocks = table.blocks().select(np.argsort(table.blocks().address))
    said: dict[str, Any] = {name: getattr(table.totals, name)[:stacks] for name in COLUMNS}
    said |= {f"cohorts {f.name}": getattr(census, f.name) for f in fields(census)[:-1]}
    said |= {f"thread {f.name}": getattr(table.threads(), f.name) for f in fields(table.threads())}
    said |= dict(enumerate(blocks.columns()))
    said |= asdict(table.peak) | asdict(table.oddities)
    said["live_bytes"], said["live_count"] = (
        said[name][:stacks] for name in ("live_bytes", "live_count")
    )
    said["flows"], said["unordered"] = table.flows(), table.unordered_count
    said["held"] = table.live_bytes
    return said


@pytest.mark.parametrize(
    "kinds",
    [
        {}, {"temporary": TemporaryPolicy(0)}, {"temporary": TemporaryPolicy(5)},
        {"temporary": TemporaryPolicy(life_ns=65 * MS)}, {"sample_bytes": 300},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("seed", range(16))
def test_at_once_or_one_by_one(
    seed: int, kinds: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures are the same, also of threads that are too many to be known."""
    dice = random.Random(seed)
    monkeypatch.setattr(table, "MOST_THREADS", dice.choice([2, 3, 1000]))
    events, times = short_lives(dice, dice.choice([20, 300, 1500]))
    cuts = sorted(dice.sample(range(1, len(events)), dice.choice([0, 3, 12])))
    check(events, times, cuts, kinds)


def test_a_failed_resize_meanwhile() -> None:
    """What it gives back may be more than ever before was outstanding, together with the block."""
    events: list[Event] = [
        (A, 32, 100, 1, 2), (A, 48, 50, 2, 3), (R, 32, 0, 0, 2),
        (A, 16, 60, 3, 1), (X, 32, 0, 0, 2), (F, 16, 0, 0, 1),
    ]  # fmt: skip
    times = [NS_PER_S + n for n in range(len(events))]
    assert check(events, times, [], {})["size_bytes"] == 210


def check(
    events: list[Event], times: list[int], cuts: list[int], kinds: dict[str, Any]
) -> dict[str, Any]:
    """Compares with a table that applies each event by itself. Returns what both say."""
    apart = [one for event in events for one in (event, *NOTHING)]
    step = 1 + len(NOTHING)
    slowly = outcome(apart, np.repeat(times, step).tolist(), [step * cut for cut in cuts], kinds)
    for how in ({}, {"by_time": True}):
        at_once = outcome(events, times, cuts, kinds, **how)
        assert at_once.keys() == slowly.keys()
        for name, figures in slowly.items():
            np.testing.assert_array_equal(at_once[name], figures, str(name))
    return slowly
