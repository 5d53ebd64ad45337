"""Folds old snapshots of a recording, so that they are further apart the older they are.

Snapshots are kept in groups: the first one whole, each other one as the difference from an earlier
one. Folding replaces several groups by one with fewer snapshots, without changing the remaining
ones. The group being written is never folded.
"""

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.show.recording import container
from tracelloc.show.recording.momentcodec import MomentChain, decode, encode

GROUP: Final = 60  # Moments in a group
STEPS_S: Final = (1, 10, 60, 600, 3600)  # Distances of moments
# How long moments are kept at each distance, if there is room.
_KEPT_S: Final = {1: 3600.0, 10: 86_400.0, 60: 7 * 86_400.0, 600: 30 * 86_400.0}


@dataclass(frozen=True, slots=True)
class MomentGroup:
    """Consecutive snapshots that are stored as differences, by the snapshots' numbers."""

    whole: int  # The first one, which is whole
    last: int  # Number of the last snapshot
    last_s: float  # CLOCK_MONOTONIC, seconds
    step_s: int  # Approximate seconds between snapshots
    count: int  # Number of snapshots


class Compactor:
    """Folds old groups of snapshots, and drops the oldest if the file gets too large."""

    def __init__(self, connection: sqlite3.Connection, most_bytes: int, most_s: float) -> None:
        """``most_bytes``: limit of the file's size; ``most_s``: how far the file reaches back."""
        self._connection = connection
        self._most_bytes = most_bytes
        self._most_s = most_s

    def groups(self) -> list[MomentGroup]:
        """Returns all groups but the newest, oldest first."""
        rows = self._connection.execute(
            "SELECT whole, MAX(number), MAX(uptime_s), MAX(step_s), COUNT(*) FROM moments "
            "GROUP BY whole ORDER BY whole"
        ).fetchall()
        return [MomentGroup(*row) for row in rows[:-1]]

    def fold(self, now_s: float) -> bool:
        """Folds groups once, if needed. Returns whether there may be more to fold."""
        groups = self.groups()
        if not groups:
            return False
        if now_s - groups[0].last_s > self._most_s:
            self._replace(groups[:1], [])
            return True
        some = _due(groups, now_s)
        if some is None:
            if container.used_bytes(self._connection) <= self._most_bytes:
                return False
            some = _oldest_alike(groups)
        if some is None:
            self._replace(groups[:1], [])
        else:
            self._merge(some)
        return True

    def _replace(
        self, groups: list[MomentGroup], rows: list[tuple[container.RecordedMoment, bytes]]
    ) -> None:
        between = groups[0].whole, groups[-1].last
        with container.transaction(self._connection):
            for table in ("moments", "contents"):
                self._connection.execute(
                    f"DELETE FROM {table} WHERE number BETWEEN ? AND ?",  # noqa: S608
                    between,
                )
            for row in rows:
                insert(self._connection, *row)

    def _merge(self, groups: list[MomentGroup]) -> None:
        step_s = next(step for step in STEPS_S if step > groups[0].step_s)
        rows = []
        whole = due_s = None
        kept = MomentChain()
        for group in groups:
            chain = MomentChain()
            for moment, data in moments_of(self._connection, group.whole, group.last):
                now = decode(data, chain.base)
                chain.add(now)
                if due_s is not None and moment.uptime_s < due_s:
                    continue
                due_s = moment.uptime_s + step_s - groups[0].step_s / 2
                whole = moment.number if whole is None else whole
                rows.append((moment._replace(step_s=step_s, whole=whole), encode(now, kept.base)))
                kept.add(now)
        self._replace(groups, rows)


def insert(connection: sqlite3.Connection, moment: container.RecordedMoment, data: bytes) -> None:
    """Adds a snapshot's row to the database."""
    crc = container.checksum(data, moment.number, moment.whole)
    connection.execute("INSERT INTO moments VALUES (?, ?, ?, ?, ?)", moment)
    connection.execute("INSERT INTO contents VALUES (?, ?, ?)", (moment.number, crc, data))


def moments_of(
    connection: sqlite3.Connection, first: int, last: int
) -> Iterator[tuple[container.RecordedMoment, bytes]]:
    """Yields snapshots with their data, ordered by number. Raises MalformedError."""
    rows = connection.execute(
        "SELECT number, time_s, uptime_s, step_s, whole, crc, data "
        "FROM moments JOIN contents USING (number) WHERE number BETWEEN ? AND ? ORDER BY number",
        (first, last),
    )
    for *of_moment, crc, data in rows:
        moment = container.RecordedMoment(*of_moment)
        yield moment, container.checked(data, crc, moment.number, moment.whole)


def _runs(groups: list[MomentGroup]) -> dict[int, list[MomentGroup]]:
    """Returns, per step, its oldest groups, as many as make one new group."""
    runs: dict[int, list[MomentGroup]] = {}
    for step_s, next_s in pairwise(STEPS_S):
        found = [group for group in groups if group.step_s == step_s]
        if len(found) >= next_s // step_s:
            runs[step_s] = found[: next_s // step_s]
    return runs


def _due(groups: list[MomentGroup], now_s: float) -> list[MomentGroup] | None:
    runs = _runs(groups).items()
    return next((run for step_s, run in runs if now_s - run[-1].last_s > _KEPT_S[step_s]), None)


def _oldest_alike(groups: list[MomentGroup]) -> list[MomentGroup] | None:
    """Returns the oldest groups that can be folded to free space; None if there are none."""
    runs = _runs(groups)
    if runs:
        return runs[max(runs)]
    foldable = [group for group in groups if group.step_s < STEPS_S[-1]]
    return [group for group in foldable if group.step_s == foldable[0].step_s] or None
