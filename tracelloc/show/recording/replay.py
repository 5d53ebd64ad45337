"""The live blocks at any moment of a recording, from its events."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from dataclasses import replace

from tracelloc.errors import MalformedError
from tracelloc.heap.sampling import GIVEN, weighed_blocks
from tracelloc.model.blocks import Blocks
from tracelloc.model.events import Events
from tracelloc.show.recording.changes import ProcessKey
from tracelloc.show.recording.container import checked
from tracelloc.show.recording.events import decode, outstanding
from tracelloc.show.recording.joined import AnyRecording, JoinedTraces
from tracelloc.show.recording.parts import key_of
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S


def with_blocks(recording: AnyRecording, index: int, trace: TraceSnapshot) -> TraceSnapshot:
    """Returns a moment's trace with its live blocks, if events reach back so far.

    Unchanged without events, and of several recordings. Raises TracellocError.
    """
    if isinstance(recording, JoinedTraces) or not recording.has_events:
        return trace
    moment = recording.moments[index].number
    with recording.reading() as connection:
        processes = [
            replace(one, blocks=_blocks_at(connection, moment, key_of(one), one))
            for one in trace.processes
        ]
    return replace(trace, processes=tuple(processes))


def blocks_since_s(recording: AnyRecording) -> float | None:
    """Returns when single blocks begin, in seconds since 1970; None if there are none.

    Raises TracellocError.
    """
    if isinstance(recording, JoinedTraces) or not recording.has_events:
        return None
    with recording.reading() as connection:
        (since_s,) = connection.execute(
            "SELECT MIN(time_s) FROM moments "
            "WHERE number >= (SELECT MIN(moment) FROM events WHERE is_whole)"
        ).fetchone()
    return since_s if isinstance(since_s, float) else None


def _blocks_at(
    connection: sqlite3.Connection, moment: int, key: ProcessKey, one: Snapshot
) -> Blocks | None:
    """Returns the live blocks at a moment; None if events do not reach back so far.

    Raises MalformedError.
    """
    rows = connection.execute(
        "SELECT moment, crc, data FROM events WHERE process = ?1 AND programs = ?2 AND "
        "moment BETWEEN (SELECT MAX(moment) FROM events WHERE process = ?1 AND programs = ?2 "
        "AND is_whole AND moment <= ?3) AND ?3 ORDER BY moment",
        (*key, moment),
    )
    parts = _parts(rows, key, one)
    # Read one by one, as all together may be large.
    if (first := next(parts, None)) is None:
        return None
    blocks = outstanding(itertools.chain([first], parts), len(one.stacks))
    return weighed_blocks(blocks) if one.sample_bytes == GIVEN else blocks


def _parts(rows: sqlite3.Cursor, key: ProcessKey, one: Snapshot) -> Iterator[Events]:
    """Yields the initial live blocks, then events."""
    is_first = True
    for number, crc, data in rows:
        events, births = decode(checked(data, crc, number, *key))
        part = births if is_first else events
        _check(part, len(one.stacks), one.now_ns)
        yield part
        is_first = False


def _check(events: Events, stacks: int, now_ns: int) -> None:
    """Raises MalformedError for events that can't have happened by ``now_ns``."""
    if len(events) and int(events["stack_id"].max()) >= stacks:
        raise MalformedError("events have unknown stack numbers")
    if len(events) and int(events["time_ns"].max()) > now_ns + NS_PER_S:
        raise MalformedError("events are of later times")
