"""The profiler's part of the preloaded library. The program's threads are imitated, step by step:
interleavings such as these can't be had from real ones on demand."""

import mmap
import random
import struct
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.unit.events import sent_stacks
from tracelloc.command.commandline import parse_command_line
from tracelloc.command.options import completed
from tracelloc.errors import UsageError
from tracelloc.model.events import EVENT_DTYPE, EVENT_LAP_BIT, EVENT_SIZE_BITS, EventKind
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.ringmerge import AreaRings
from tracelloc.record.unwinding.framechecker import LeadingFrames

WORD = struct.Struct("<Q")
IMAGE = 7


@dataclass
class Area:
    """The shared memory, as a program with the counting clock would write it."""

    memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, ringmerge.FILE_BYTES))
    counter: int = 1

    def __post_init__(self) -> None:
        self.own(3)
        self.memory[ringmerge.FIELDS["clock"]] = ringmerge.CLOCK_COUNTER
        self.set(ringmerge.FIELDS["counter"], self.counter)

    def set(self, at: int, word: int) -> None:
        self.memory[at : at + 8] = WORD.pack(word)

    def get(self, at: int) -> int:
        return int(WORD.unpack_from(self.memory, at)[0])

    def stamp(self) -> int:
        self.counter += 1
        self.set(ringmerge.FIELDS["counter"], self.counter)
        return self.counter - 1

    def ring(self, number: int) -> int:
        return ringmerge.AT_RINGS + number * ringmerge.RING_BYTES

    def own(self, rings: int) -> None:
        """Threads take the first rings, one after the other."""
        for number in range(rings):
            self.set(self.ring(number) + 128, 1)

    def reserve(self, number: int) -> int:
        slot = self.get(self.ring(number))
        self.set(self.ring(number), slot + 1)
        return slot

    def write(
        self, number: int, slot: int, stamp: int, address: int, kind: int = EventKind.ALLOC
    ) -> None:
        at, slots = ringmerge.slots_of(number)
        at += slot % slots * EVENT_DTYPE.itemsize
        lap = slot // slots + 1
        tag = 16 | kind << EVENT_SIZE_BITS | (lap << EVENT_LAP_BIT & (1 << 64) - 1)
        self.memory[at : at + 40] = struct.pack("<QQQQII", address, tag, 0, stamp, 1, 0)

    def rings(self) -> AreaRings:
        return AreaRings(memoryview(self.memory), IMAGE, 1)


def slots_in(ring: int) -> int:
    return ringmerge.slots_of(ring)[1]


def take(rings: AreaRings, now_ns: int = 2, *, whole: bool = False) -> list[int]:
    """Addresses of the events that are complete, in their order."""
    count, cut = rings.find_events(whole, now_ns)
    events = np.empty(count, EVENT_DTYPE)
    if not count:
        return []
    events = events[: rings.merge(cut, now_ns, events.view(np.uint8))]
    assert set(events["image"].tolist()) <= {IMAGE}
    return list(events["address"].tolist())


class Thread:
    """Makes events in three steps, between which anything may happen; addresses are stamps."""

    def __init__(self, area: Area, number: int) -> None:
        self._area, self._number = area, number
        self._slot: int | None = None
        self._stamp: int | None = None

    def step(self) -> None:
        if self._slot is None:
            taken = self._area.get(self._area.ring(self._number) + 64)
            if self._area.get(self._area.ring(self._number)) - taken < slots_in(self._number):
                self._slot = self._area.reserve(self._number)
        elif self._stamp is None:
            self._stamp = self._area.stamp()
        else:
            self._area.write(self._number, self._slot, self._stamp, self._stamp)
            self._slot = self._stamp = None

    @property
    def is_between(self) -> bool:
        return self._slot is not None


def test_events_after_a_look_that_found_none_are_later() -> None:
    """A counter tells nothing of times: these are spread over what has passed since a look."""
    area = Area()
    rings = area.rings()
    for number in range(2):
        assert take(rings, 1000 + 4000 * number) == []
        for _ in range(10):
            stamp = area.stamp()
            area.write(0, area.reserve(0), stamp, stamp)
        count, cut = rings.find_events(False, 2000 + 4000 * number)
        events = np.empty(count, EVENT_DTYPE)
        assert rings.merge(cut, 2000 + 4000 * number, events.view(np.uint8)) == 10
        times_ns = events["time_ns"].tolist()
        assert times_ns == sorted(times_ns)
        assert 1000 + 4000 * number <= times_ns[0] < times_ns[-1] <= 2000 + 4000 * number


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_is_in_order_and_complete(seed: int) -> None:
    dice = random.Random(seed)
    area = Area()
    # Rings that are near the end of a lap, which earlier threads have had.
    for number in range(6):
        before = slots_in(number) * dice.randrange(6) - dice.randrange(2)
        area.set(area.ring(number), max(0, before))
    area.own(6)
    threads = [Thread(area, number) for number in range(6)]
    rings = area.rings()
    seen: list[int] = []
    for _ in range(4000):
        # Some are favored for a while, as by a scheduler.
        dice.choice(threads[: dice.randrange(1, 7)]).step()
        if dice.random() < 0.02:
            seen += take(rings)
    while any(thread.is_between for thread in threads):
        for thread in threads:
            if thread.is_between:
                thread.step()
    seen += take(rings)
    assert seen == list(range(1, area.counter))


def test_quiet_rings_and_garbage() -> None:
    """Until something comes, also in a ring that nobody has had before."""
    area = Area()
    rings = area.rings()
    assert rings.is_quiet
    area.write(2, area.reserve(2), area.stamp(), 200)
    assert not rings.is_quiet
    assert take(rings) == [200]
    assert rings.is_quiet
    area.own(4)
    assert not rings.is_quiet
    assert take(rings) == []
    assert rings.is_quiet
    area.write(3, area.reserve(3), area.stamp(), 300)
    assert take(rings) == [300]
    area = Area()
    area.own(6)
    area.set(area.ring(4) + 128, 0)  # for an earlier profiler, and without an event
    rings = area.rings()
    area.write(5, area.reserve(5), area.stamp(), 500)
    assert take(rings) == [500]
    # Whatever a program writes there, it can do no harm but to its own figures.
    dice = random.Random(5)
    area = Area()
    area.own(10)
    rings = area.rings()
    for number in range(8):
        area.set(area.ring(number), dice.choice([5, slots_in(number), 1 << 63, (1 << 64) - 1]))
        area.set(area.ring(number) + 64, dice.getrandbits(64))
    size = 64 * EVENT_DTYPE.itemsize
    for number in range(8):
        at, _ = ringmerge.slots_of(number)
        area.memory[at : at + size] = dice.randbytes(size)
    for kind in range(16):
        area.write(9, area.reserve(9), area.stamp(), 1000 + kind, kind)
    area.write(9, area.reserve(9), area.stamp(), 1 << 50)
    found = take(rings, whole=True)
    known = {1, 2, 3, 4, 6, 13}
    assert {address - 1000 for address in found if 1000 <= address < 1016} == known
    assert 1 << 50 not in found
    assert rings.damaged > 0
    leading = LeadingFrames([(100, 200), (300, 400)])
    assert leading.without((150, 350, 250, 150)) == (250, 150)
    assert leading.without((150, 350)) == (350,)
    assert leading.without(()) == ()
    stacks = sent_stacks((1, 0, (150, 350, 250, 150)), (2, 0, (150,)), (3, 0, (50, 150)))
    assert [frames for _, _, frames in leading.without_all(stacks).rows()] == [
        (250, 150), (150,), (50, 150),
    ]  # fmt: skip


def test_what_is_not_written() -> None:
    area = Area()
    rings = area.rings()
    area.write(1, area.reserve(1), area.stamp(), 100)
    slot = area.reserve(1)
    early = area.stamp()
    area.write(2, area.reserve(2), area.stamp(), 102)
    assert take(rings) == [100]
    assert rings.is_unfinished
    area.write(1, slot, early, 101)
    assert take(rings) == [101, 102]
    assert not rings.is_unfinished
    # A signal handler has jumped away from it, say. Then it is counted as lost.
    area = Area()
    rings = area.rings()
    area.reserve(1)
    area.stamp()
    area.write(2, area.reserve(2), area.stamp(), 200)
    assert take(rings, 1_000_000_000) == []
    assert take(rings, 4_000_000_000) == []
    assert take(rings, 7_000_000_000) == [200]
    assert rings.abandoned == 1
    area = Area()
    rings = area.rings()
    area.reserve(1)
    area.write(2, area.reserve(2), area.stamp(), 200)
    area.reserve(2)
    assert take(rings, whole=True) == [200]


@pytest.mark.parametrize(
    "more",
    [
        ["--follow"], ["--mmap"], ["--stacks", "fp"], ["--max-overhead", "5%"],
        ["--malloc", "jemalloc"],
    ],
    ids=str,
)  # fmt: skip
def test_what_needs_probes(more: list[str]) -> None:
    with pytest.raises(UsageError, match="--preload=on excludes"):
        parse_command_line(["-p", "1", "--text", "--preload", "on", *more], terminal=False)
    line = parse_command_line(["-p", "1", "--text", "--preload", "auto", *more], terminal=False)
    assert not completed(line).trace.use_library
