"""Hand-made event records, and a table that applies them one by one."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind, Events, SentStacks

A, F, R, X = EventKind.ALLOC, EventKind.FREE, EventKind.REALLOC_FREE, EventKind.RESTORE

# kind, address, size, stack id, thread id; times are positions.
Event = tuple[EventKind, int, int, int, int]


def records(events: list[Event], first_time: int = 1, times_ns: Any = None) -> Events:
    """Records as the ring holds them, at ``times_ns``, or the n-th one at ``first_time + n``."""
    out = np.zeros(len(events), EVENT_DTYPE)
    for n, (kind, address, size, stack_id, tid) in enumerate(events):
        out[n]["address"] = address
        out[n]["size_tag"] = size | int(kind) << EVENT_SIZE_BITS
        out[n]["stack_id"] = stack_id
        out[n]["tid"] = out[n]["image"] = tid
        out[n]["time_ns"] = first_time + n
    if times_ns is not None:
        out["time_ns"] = times_ns
    return out


def table_of(events: list[Event], stacks: Stacks | None = None, **kinds: Any) -> LiveTable:
    """A table to which these have happened."""
    table = LiveTable(stacks or Stacks(), **kinds)
    table.apply(records(events))
    return table


def held(table: LiveTable) -> dict[int, tuple[int, int]]:
    """(size, stack index) of all blocks by address."""
    blocks = table.blocks()
    rows = zip(blocks.size.tolist(), blocks.stack.tolist(), strict=True)
    return dict(zip(blocks.address.tolist(), rows, strict=True))


def sent_stacks(*stacks: tuple[int, int, tuple[int, ...]]) -> SentStacks:
    """Stacks as the ring of stacks holds them: (id, flags, frames)."""
    return SentStacks(
        np.array([stack_id for stack_id, *_ in stacks], np.uint64),
        np.array([flags for _, flags, _ in stacks], np.uint16),
        np.array([len(frames) for *_, frames in stacks], np.int64),
        np.array([frame for *_, frames in stacks for frame in frames], np.uint64),
    )


Block = tuple[int, int, int, int]  # size, stack id, birth, thread id


@dataclass
class PlainTable:
    """The meaning of events, written as simply as it can be."""

    live: dict[int, Block] = field(default_factory=dict)
    allocated: dict[int, tuple[int, int]] = field(default_factory=dict)
    freed: dict[int, tuple[int, int]] = field(default_factory=dict)
    unmatched: int = 0
    reuses: int = 0
    odd_restores: int = 0
    pending: dict[int, tuple[int, Block | None, int]] = field(default_factory=dict)
    tick_ns: int = 1
    time: int = 0
    between: int = 1  # At most so many other allocations come between those of a temporary block
    temporary: dict[int, tuple[int, int]] = field(default_factory=dict)
    remote: dict[int, tuple[int, int]] = field(default_factory=dict)
    made_by: dict[int, tuple[int, int]] = field(default_factory=dict)  # By thread; as the next
    freed_by: dict[int, tuple[int, int]] = field(default_factory=dict)
    # By who made and who freed.
    flows: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    peak: tuple[int, dict[int, tuple[int, int]]] = (0, {})  # When, and what was held by stack
    # By address: how many blocks its thread had made before.
    _numbers: dict[int, int] = field(default_factory=dict)
    _held: int = 0
    _most: int = 0

    @staticmethod
    def _add(book: dict[Any, tuple[int, int]], key: object, size: int, sign: int) -> None:
        count, total = book.get(key, (0, 0))
        book[key] = count + sign, total + sign * size

    def _end(self, address: int, block: Block, ender: int, number: int, sign: int = 1) -> None:
        size, stack, _, maker = block
        self._add(self.freed, stack, size, sign)
        self._add(self.freed_by, ender, size, sign)
        self._held -= sign * size
        made = self.made_by.get(ender, (0, 0))[0]
        if maker != ender:
            self._add(self.remote, stack, size, sign)
            self._add(self.flows, (maker, ender), size, sign)
        elif made - number - 1 <= self.between:
            self._add(self.temporary, stack, size, sign)
        if sign < 0:
            self._numbers[address] = number

    def apply(self, event: Event) -> None:
        kind, address, size, stack, tid = event
        self.time += self.tick_ns
        pending = self.pending.pop(tid, None)
        if kind is EventKind.ALLOC:
            self._add(self.allocated, stack, size, 1)
            old = self.live.pop(address, None)
            if old:
                self.reuses += 1
                self._add(self.freed, old[1], old[0], 1)
                self._held -= old[0]
            self._numbers[address] = self.made_by.get(tid, (0, 0))[0]
            self._add(self.made_by, tid, size, 1)
            self._held += size
            self.live[address] = size, stack, self.time, tid
        elif kind is EventKind.RESTORE:
            if pending is None or pending[0] != address:
                self.odd_restores += 1
            elif pending[1] is None:
                self.unmatched -= 1
            else:
                self._end(address, pending[1], tid, pending[2], -1)
                self.live[address] = pending[1]
        else:
            block = self.live.pop(address, None)
            number = self._numbers.pop(address, 0)
            if block is None:
                self.unmatched += 1
            else:
                self._end(address, block, tid, number)
            if kind is EventKind.REALLOC_FREE:
                self.pending[tid] = address, block, number
        if self._held > self._most:
            self._most = self._held
            held: dict[int, tuple[int, int]] = {}
            for size, stack, _, _ in self.live.values():
                self._add(held, stack, size, 1)
            self.peak = self.time, held


def random_program(
    seed: int, length: int, threads: int, addresses: int, failing: float = 0.4
) -> list[Event]:
    """What the probes would report of a correct program that also frees old blocks.

    Each thread's realloc spans two events with others' events between them. Few
    addresses make reuse likely; a slot is only handed out when it is free. ``failing``:
    share of the reallocs that fail.
    """
    rng = random.Random(seed)
    free = [0x7F0000000000 + 16 * n for n in range(addresses)]
    live: list[int] = []
    ancient = [free.pop() for _ in range(addresses // 4)]
    busy: dict[int, tuple[int, int]] = {}
    events: list[Event] = []
    while len(events) < length:
        tid = rng.randrange(1, threads + 1)
        if tid in busy:
            old, size = busy.pop(tid)
            if rng.random() < failing:
                events.append((EventKind.RESTORE, old, 0, 0, tid))
                live.append(old)
                continue
            if rng.random() < 0.5 and free:
                free.append(old)
                old = free.pop(rng.randrange(len(free)))
            events.append((EventKind.ALLOC, old, size, rng.randrange(1, 9), tid))
            live.append(old)
            continue
        choice = rng.random()
        if choice < 0.45 and free:
            address = free.pop(rng.randrange(len(free)))
            live.append(address)
            events.append(
                (EventKind.ALLOC, address, rng.randrange(0, 5000), rng.randrange(1, 9), tid)
            )
        elif choice < 0.5 and ancient:
            address = ancient.pop()
            if rng.random() < 0.5:
                events.append((EventKind.FREE, address, 0, 0, tid))
                free.append(address)
            else:
                events.append((EventKind.REALLOC_FREE, address, 0, 0, tid))
                busy[tid] = address, rng.randrange(1, 5000)
        elif choice < 0.8 and live:
            address = live.pop(rng.randrange(len(live)))
            events.append((EventKind.FREE, address, 0, 0, tid))
            free.append(address)
        elif live:
            address = live.pop(rng.randrange(len(live)))
            events.append((EventKind.REALLOC_FREE, address, 0, 0, tid))
            busy[tid] = address, rng.randrange(1, 5000)
    return events
