"""The table of all events of a recording, from which live blocks at any moment follow.

A row has the events of one process between two moments and, at intervals, all blocks that are
outstanding after them, so that few rows lead to any moment. Columns are compressed one by one:
times as differences, addresses and threads as indices of their distinct values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

import numpy as np

from tracelloc.errors import MalformedError
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import Blocks, LoggedEvents
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind, Events
from tracelloc.show.recording.changes import ProcessKey, arrays_packed, arrays_unpacked
from tracelloc.show.recording.container import checksum
from tracelloc.system.bounded import UnpackBudget

# Times, distinct addresses, which of them, sizes with kinds, stacks, distinct threads, which.
_TYPES: Final = (
    np.int64, np.uint64, np.uint32, np.uint64, np.uint32, np.uint32, np.uint32,
)  # fmt: skip
_LARGEST_BYTES: Final = 1 << 29  # Largest row, unpacked: some fifteen million events
_MOST_BLOCKS: Final = 1 << 24
_INSERT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"
_SHARE: Final = 2  # Largest part of the file for events: one in this many


def encode(logged: LoggedEvents) -> bytes:
    """Encodes the data of a row."""
    blocks = Blocks.empty() if logged.blocks is None else logged.blocks
    both = np.concatenate([logged.events, _births(blocks)])
    addresses, address = np.unique(both["address"], return_inverse=True)
    threads, thread = np.unique(both["tid"], return_inverse=True)
    return len(logged.events).to_bytes(4, "little") + arrays_packed(
        np.diff(both["time_ns"].astype(np.int64), prepend=0),
        np.diff(addresses, prepend=np.uint64(0)),
        address.astype(np.uint32),
        # Kind and size in one column: both depend on the stack.
        both["size_tag"] << np.uint64(8) | both["size_tag"] >> np.uint64(EVENT_SIZE_BITS),
        both["stack_id"].astype(np.uint32),
        threads,
        thread.astype(np.uint32),
    )


def decode(data: bytes) -> tuple[Events, Events]:
    """Returns (events, allocations of all blocks live after them). Raises MalformedError."""
    count = int.from_bytes(data[:4], "little")
    times, addresses, address, tags, stacks, threads, thread = arrays_unpacked(
        data[4:], *_TYPES, budget=UnpackBudget(_LARGEST_BYTES)
    )
    length = len(times)
    if any(len(each) != length for each in (address, tags, stacks, thread)) or count > length:
        raise MalformedError("events are damaged")
    if length and (int(address.max()) >= len(addresses) or int(thread.max()) >= len(threads)):
        raise MalformedError("events are damaged")
    events = np.zeros(length, EVENT_DTYPE)
    events["time_ns"] = np.cumsum(times)
    events["address"] = np.cumsum(addresses)[address]
    events["size_tag"] = tags >> np.uint64(8) | tags << np.uint64(EVENT_SIZE_BITS)
    events["stack_id"] = stacks
    events["tid"] = threads[thread]
    return events[:count], events[count:]


def _births(blocks: Blocks) -> Events:
    events = np.zeros(len(blocks), EVENT_DTYPE)
    tag = np.uint64(EventKind.ALLOC << EVENT_SIZE_BITS)
    events["address"], events["size_tag"] = blocks.address, blocks.size | tag
    events["stack_id"], events["time_ns"] = blocks.stack, blocks.birth_ns
    events["tid"] = blocks.tid
    return events[np.argsort(events["time_ns"], kind="stable")]


class EventWriter:
    """Writes rows, and drops the oldest when they take too much space."""

    def __init__(self, connection: sqlite3.Connection, max_bytes: int) -> None:
        """``max_bytes``: limit of the whole file."""
        self._connection = connection
        self._max_bytes = max_bytes // _SHARE
        self._bytes = 0
        self.first = 0
        """Number of the first moment whose events are kept."""
        self._last: dict[ProcessKey, LoggedEvents] = {}

    def add(self, moment: int, key: ProcessKey, logged: LoggedEvents) -> None:
        """Writes the events that led to a moment, only once per batch."""
        if self._last.get(key) is logged or not (len(logged.events) or logged.blocks is not None):
            return
        self._last[key] = logged
        data = encode(logged)
        is_whole = logged.blocks is not None
        crc = checksum(data, moment, *key)
        self._connection.execute(_INSERT, (moment, *key, is_whole, crc, data))
        self._bytes += len(data)
        while self._bytes > self._max_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drops the oldest row; the next row of its process gets all live blocks."""
        read = self._connection.execute
        oldest = "SELECT * FROM events ORDER BY moment LIMIT 1"
        moment, process, programs, is_whole, _, data = read(oldest).fetchone()
        key = process, programs
        self._replace(moment, key, None)
        self.first = moment + 1
        later = read(
            "SELECT moment, is_whole, data FROM events WHERE process = ? AND programs = ? "
            "ORDER BY moment LIMIT 1", key,
        ).fetchone()  # fmt: skip
        self._bytes -= len(data)
        if later is not None and is_whole and not later[1]:
            parts = decode(data)[1], decode(later[2])[0]
            most = max(int(part["stack_id"].max(initial=0)) for part in parts)
            blocks = outstanding(parts, most + 1)
            whole = encode(LoggedEvents(np.empty(0, EVENT_DTYPE), blocks))
            self._replace(later[0], key, whole)
            self._bytes += len(whole) - len(later[2])

    def _replace(self, moment: int, key: ProcessKey, whole: bytes | None) -> None:
        row = moment, *key
        change = self._connection.execute
        change("DELETE FROM events WHERE moment = ? AND process = ? AND programs = ?", row)
        if whole is not None:
            change(_INSERT, (*row, True, checksum(whole, *row), whole))


def outstanding(parts: Iterable[Events], most_stacks: int) -> Blocks:
    """Applies events in order. Returns the live blocks. Raises MalformedError at the limit."""
    stacks = Stacks()
    # Under their indices.
    stacks.indices(np.arange(1, most_stacks, dtype=np.uint64))
    table = LiveTable(stacks)
    for part in parts:
        table.apply(part)
        if int(table.totals.live_count.sum()) > _MOST_BLOCKS:
            raise MalformedError("too many blocks are live")
    return table.blocks()
