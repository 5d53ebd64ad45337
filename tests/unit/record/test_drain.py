"""The overflow protocol, both sides of it, against a table that is told each event.

The probes' side is their own source, compiled for plain memory (tests/shim/emit.c): the
ring is full whenever a test wants it to be. Another test has the kernel run it.
"""

import ctypes
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.recfunctions import repack_fields

from tests.commands import run
from tests.harness import ROOT
from tests.unit.events import Event, PlainTable, random_program
from tests.unit.heap.test_table import expected, state
from tracelloc import probes
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import EVENT_DTYPE, PAIR_DTYPE, EventBatch, Events
from tracelloc.model.losses import Counter
from tracelloc.record.abi import CONTROL_DTYPE
from tracelloc.record.kernel.drain import ENTRY_DTYPE, Drain

TICK_NS = 1 << 20  # Something happens at each of the shim's ticks
SHIM = ROOT / "tests/shim/emit.c"
ROOM = 65536


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    out = tmp_path_factory.mktemp("shim") / "emit.so"
    defined = "-DSPILL_ENTRIES=1", f"-DEVENTS={ROOM}"
    flags = "-O1", "-shared", "-fPIC", "-w", *defined, "-I", probes.directory()
    run("gcc", *flags, SHIM, "-o", out)
    shim = ctypes.CDLL(str(out))
    shim.shared_control.restype = ctypes.c_void_p
    shim.counter.restype = ctypes.c_uint64
    shim.happen.argtypes = [
        ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32,
        ctypes.c_uint64, ctypes.c_size_t,
    ]  # fmt: skip
    return shim


class Probes:
    """The probes in plain memory, with what ``Drain`` needs of the capture."""

    room = ROOM
    consumed = produced = 0

    def __init__(self, library: ctypes.CDLL, spill_entries: int) -> None:
        self.shim = library
        self.shim.reset(ctypes.c_size_t(spill_entries))
        memory = (ctypes.c_char * CONTROL_DTYPE.itemsize).from_address(self.shim.shared_control())
        self.control = np.frombuffer(memory, CONTROL_DTYPE)
        self._buffer = np.empty(ROOM * 64, np.uint8)
        spill = SimpleNamespace(
            entries=SimpleNamespace(
                take_entries=lambda _: self.taken(self.shim.take_spill, ENTRY_DTYPE, 16)
            ),
            pairs=SimpleNamespace(
                take_entries=lambda _: self.taken(self.shim.take_pairs, PAIR_DTYPE, 24)
            ),
            grace=SimpleNamespace(wait=lambda: self.in_grace(), close=lambda: None),
        )
        self.in_grace: Callable[[], None] = lambda: None
        """What happens when the new epoch has begun and the old one is not yet read."""
        self.drain = Drain(self, self.control, spill)  # type: ignore[arg-type]

    def happen(self, number: int, event: Event, room: int) -> None:
        kind, address, size, stack_id, tid = event
        self.shim.happen(kind, address, size, stack_id, tid, number, room)

    def counter(self, counter: Counter) -> int:
        return int(self.shim.counter(counter))

    def take_events(self) -> Events:
        count = self.shim.take_ring(self._buffer.ctypes.data_as(ctypes.c_void_p))
        return self._records(count, EVENT_DTYPE)

    def _records(self, count: int, dtype: np.dtype[Any]) -> Any:
        return self._buffer[: count * dtype.itemsize].copy().view(dtype)

    def taken(self, take: Any, dtype: np.dtype[Any], key_bytes: int) -> Iterator[tuple[Any, Any]]:
        """Keys and values of the old epoch."""
        parity = int(self.control["epoch"][0] - 1) % 2
        count = take(parity, self._buffer.ctypes.data_as(ctypes.c_void_p))
        if count:
            yield _split(self._records(count, dtype), key_bytes)


def _split(rows: Any, key_bytes: int) -> tuple[Any, Any]:
    """Keys and values, as a map gives them."""
    offsets = {name: rows.dtype.fields[name][1] for name in rows.dtype.names}
    keys = [name for name, at in offsets.items() if at < key_bytes]
    values = [name for name in offsets if name not in keys]
    return repack_fields(rows[keys]), repack_fields(rows[values])


class Run:
    """A program's events, put through the probes and the drain at random, and into a table."""

    def __init__(self, library: ctypes.CDLL, seed: int, spill_entries: int = ROOM) -> None:
        self.dice = random.Random(seed)
        self.probes = Probes(library, spill_entries)
        self.table = LiveTable(Stacks())
        self.plain = PlainTable(tick_ns=TICK_NS)

    def apply(self, batch: EventBatch) -> None:
        self.table.apply(batch.events, in_order=not batch.overflowed)
        self.table.apply_pairs(batch.pairs)

    def go(self, events: list[Event]) -> None:
        probes, dice = self.probes, self.dice
        todo = list(enumerate(events, 1))
        room = 0

        def some() -> None:
            nonlocal room
            for _ in range(dice.choice([0, 1, 2, 5, 40])):
                if todo:
                    number, event = todo.pop(0)
                    if dice.random() < 0.2:
                        room = dice.choice([0, 3, 20, 1000])
                    probes.happen(number, event, room)
                    self.plain.apply(event)

        probes.in_grace = some
        while todo:
            some()
            if dice.random() < 0.3:
                self.apply(probes.drain.take_batch())
        while batch := probes.drain.take_batch():
            self.apply(batch)


def outcome(run: Run) -> dict[str, object]:
    """The table's state with what the spill map found odd."""
    found = state(run.table, run.plain)
    for name, counter in (
        ("unmatched", Counter.SPILL_UNMATCHED),
        ("reuses", Counter.SPILL_REUSES),
        ("odd", Counter.SPILL_ODD_RESTORES),
    ):
        found[name] += run.probes.counter(counter)  # type: ignore[operator]
    return found


@pytest.mark.parametrize("seed", range(80))
def test_random_programs(library: ctypes.CDLL, seed: int) -> None:
    """Blocks with birth and thread, totals per stack and oddities: all as if told in order."""
    run = Run(library, seed)
    run.go(random_program(seed, 1500, run.dice.randint(1, 6), run.dice.choice([8, 64])))
    assert run.probes.counter(Counter.SPILLED) > 50
    assert run.probes.drain.overflows > 5
    assert outcome(run) == expected(run.plain)
    # What is called temporary is; the others are counted as unknown.
    found, plain = int(run.table.totals.temporary_count.sum()), run.plain.temporary
    most = found + run.table.unordered_count
    assert found <= sum(count for count, _ in plain.values()) <= most


@pytest.mark.parametrize("seed", range(30))
def test_what_is_lost_is_counted(library: ctypes.CDLL, seed: int) -> None:
    """With hardly any room: each event changes the number of blocks by one, or is counted."""
    run = Run(library, seed, spill_entries=2 + seed % 8)
    run.go(random_program(seed, 1500, 4, 64))
    lost = {c: run.probes.counter(c) for c in Counter}
    assert lost[Counter.LOST_ALLOCS] + lost[Counter.LOST_FREES] > 10
    odd = outcome(run)
    assert len(run.plain.live) - run.plain.unmatched == (
        run.table.count
        + odd["reuses"]  # type: ignore[operator]
        + odd["odd"]
        - odd["unmatched"]
        + lost[Counter.LOST_ALLOCS]
        + lost[Counter.LOST_RESTORES]
        - lost[Counter.LOST_FREES]
    )
