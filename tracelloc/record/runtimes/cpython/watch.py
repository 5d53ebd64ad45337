"""Watches the objects of one Python program: censuses, growing types, and their holders.

A type that fills a cache or is imported grows in some part of the time. Objects that come and go
vary in number. A leaking type grows in nearly every part of the time, up to now, and by the middle
of that time there are more of its objects than ever before.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.model.figures import F64, Mask
from tracelloc.model.objects import (
    LEAST_GROWING_S,
    GrowingType,
    Holders,
    ObjectCensus,
    ObjectFindings,
    TypeSuspect,
    divide_by_rate,
)
from tracelloc.model.verdicts import Verdict
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.census import CensusTaker
from tracelloc.record.runtimes.cpython.holders import HolderSearch, ObjectAddresses
from tracelloc.record.runtimes.cpython.paths import ITEMS, KEYS
from tracelloc.record.runtimes.cpython.pools import I64
from tracelloc.verdict.parameters import P
from tracelloc.verdict.unreachable import doubles_memory

_MOST_POINTS: Final = 64
_NEW_POINTS: Final = 16  # Censuses that are all kept; of older ones, every second is dropped
_LEAST_PARTS, _MOST_PARTS = 5, 10  # Of the time, each at least from census to census
_GROWN_SHARE: Final = 0.75  # Share of the parts, with the last, in which a type must grow
_LEAST_SHARE: Final = 0.3  # Of a part's mean growth: with less, it does not count as growing
_LENGTHS: Final = (6, 7, 8, 10, 12, 16, 23, 32, 45)  # Censuses that are judged together
_LEAST_OBJECTS: Final = 20
_LEAST_LOOKS: Final = 3  # Consecutive censuses in which a type must grow before it is reported
_MOST_DROP: Final = 0.2  # Share of its growth by which a type may drop in between
_LAST_SHARE: Final = 1 / 3  # The last share of the time, in which a type must have grown
_LAST_S: Final = 20.0, 120.0  # Bounds of that, in seconds


class TypeHistory:
    """Counts of objects of each type over time, in columns, to find growing types."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._times_s: list[float] = []
        self._since_s: dict[int, float] = {}  # By row: since when it grows, by `growing`
        self._seen: dict[int, int] = {}  # By row: consecutive calls in which a type grew
        self._counts = np.zeros((0, _MOST_POINTS), np.int64)
        self._bytes = np.zeros((0, _MOST_POINTS), np.int64)

    def add_census(self, census: ObjectCensus) -> None:
        if len(self._times_s) == _MOST_POINTS:
            self._thin_out()
        for one in census.types:
            self._rows.setdefault(one.name, len(self._rows))
        missing = len(self._rows) - len(self._counts)
        if missing > 0:
            room = np.zeros((missing + len(self._rows) // 4, _MOST_POINTS), np.int64)
            self._counts = np.concatenate([self._counts, room])
            self._bytes = np.concatenate([self._bytes, room])
        at = len(self._times_s)
        rows = [self._rows[one.name] for one in census.types]
        self._counts[rows, at] = [one.count for one in census.types]
        self._bytes[rows, at] = [one.size_bytes for one in census.types]
        self._times_s.append(census.time_s)

    def _thin_out(self) -> None:
        old = _MOST_POINTS - _NEW_POINTS
        kept = [*range(0, old, 2), *range(old, _MOST_POINTS)]
        self._times_s = [self._times_s[at] for at in kept]
        for table in (self._counts, self._bytes):
            table[:, : len(kept)] = table[:, kept]
            table[:, len(kept) :] = 0

    def growing(self) -> list[GrowingType]:
        """Returns types that grow now, most bytes per minute first; call it after each census."""
        times_s = np.array(self._times_s)
        counts = self._counts[: len(self._rows), : len(times_s)]
        begins = np.full(len(counts), -1)
        # The longest span comes last: it tells best since when a type grows.
        some = np.flatnonzero(counts[:, -1] - counts.min(axis=1) >= _LEAST_OBJECTS)
        for length in (*_LENGTHS, len(times_s)):
            begin = len(times_s) - length
            if (
                begin >= 0
                and length > _LEAST_PARTS
                and times_s[-1] - times_s[begin] >= LEAST_GROWING_S
            ):
                begins[some[_grows(times_s, counts[some], begin)]] = begin
        times = self._seen
        self._seen = {row: times.get(row, 0) + 1 for row in np.flatnonzero(begins >= 0).tolist()}
        for row, since_s in self._since_s.items():
            begin = min(int(np.searchsorted(times_s, since_s)), len(times_s) - 1)
            if begins[row] < 0 and _still_grows(times_s[begin:], counts[row, begin:]):
                begins[row] = begin
        rows = [
            row
            for row in np.flatnonzero(begins >= 0).tolist()
            if row in self._since_s or self._seen.get(row, 0) >= _LEAST_LOOKS
        ]
        self._since_s = {row: self._times_s[begins[row]] for row in rows}
        names = list(self._rows)
        found = [self._figures(names[row], row, int(begins[row])) for row in rows]
        return sorted(found, key=lambda one: -one.bytes_per_min)

    def _figures(self, name: str, row: int, begin: int) -> GrowingType:
        last = len(self._times_s) - 1
        since_s = self._times_s[begin]
        per_min = 60 / (self._times_s[last] - since_s)
        count, size = (
            float(table[row, last] - table[row, begin]) * per_min
            for table in (self._counts, self._bytes)
        )
        return GrowingType(name, since_s, count, size)


def _grows(times_s: F64, counts: I64, begin: int) -> Mask:
    span_s, span = times_s[begin:], counts[:, begin:]
    # Parts end at censuses: counts in between are unknown.
    ends_s = np.linspace(span_s[0], span_s[-1], min(len(span_s), _MOST_PARTS + 1))
    at = np.unique(np.minimum(np.searchsorted(span_s, ends_s), len(span_s) - 1))
    at_s = span_s[at]
    levels = span[:, at]
    parts = np.diff(levels, axis=1)
    total = levels[:, -1] - levels[:, 0]
    grown = parts >= _LEAST_SHARE * total[:, None] * np.diff(at_s) / (at_s[-1] - at_s[0])
    drops = (np.maximum.accumulate(span, axis=1) - span).max(axis=1)
    highest = counts[:, : begin + 1].max(axis=1)
    good: Mask = (total >= _LEAST_OBJECTS) & (grown.mean(axis=1) >= _GROWN_SHARE)
    good &= grown[:, -1] & (drops <= _MOST_DROP * total)
    good &= levels[:, len(at_s) // 2] >= highest
    return good


def _still_grows(times_s: F64, counts: I64) -> bool:
    """Whether a type still grows, by its counts since growth began (``times_s``)."""
    total = counts[-1] - counts[0]
    length_s = times_s[-1] - times_s[0]
    least_s, most_s = _LAST_S
    last_s = min(length_s, max(least_s, min(_LAST_SHARE * length_s, most_s)))
    before = counts[np.searchsorted(times_s, times_s[-1] - last_s)]
    least = _LEAST_SHARE * total * last_s / max(length_s, 1e-9)
    return bool(total > 0 and counts[-1] - before >= max(least, 1))


_MOST_TYPES: Final = 12  # Growing types whose holders are searched for, with their keepers
_HOLDERS_S: Final = 60.0  # Time after which holders are searched for again
_FRESH_S: Final = 5.0  # Oldest census that a report accepts as current
_MINUTE_S: Final = 60.0
POOL_MEMORY: Final = 4  # Bytes that a census and a search for holders need for each byte of pools


class PythonObjectWatch:
    """Counts one Python program's objects periodically. Thread safe: one thread works at a time."""

    def __init__(
        self, process: Process, space: AddressSpace, now_s: Callable[[], float] = time.time
    ) -> None:
        """``space``: kept up to date by its owner. ``now_s``: returns the time since 1970."""
        self.findings: ObjectFindings | None = None  # None: nothing yet. Replaced as a whole.
        self.most_bytes: int | None = None  # Of tracelloc's memory, for a census; None: unlimited
        # Called after each census, in the thread that has taken it
        self.on_census: Callable[[ObjectCensus], None] = lambda _: None
        self._process = process
        self._lock = threading.Lock()
        self._now_s = now_s
        self._censuses = CensusTaker(process, now_s)
        self._search = HolderSearch(process, space)
        self._history = TypeHistory()
        self._first: ObjectCensus | None = None
        self._before: ObjectAddresses | None = None
        self._holders: dict[str, Holders] = {}
        self._has_looked = False
        self._least_rss_bytes: int | None = None  # Least resident memory so far
        self._searched: tuple[frozenset[str], float] = frozenset(), 0.0  # Types, and when

    @property
    def is_growing(self) -> bool:
        """Whether to count again soon: some type grows, or it is too early to tell."""
        found = self.findings
        if found is None or found.now is None or found.first is None:
            return not self._has_looked
        return bool(found.suspects) or found.now.time_s - found.first.time_s < 2 * _MINUTE_S

    def update_findings(self) -> None:
        """Takes a census, and finds the holders of growing types; does nothing without Python."""
        with self._lock:
            self._look()

    def refresh(self) -> None:
        """Takes a census, like ``update_findings``, unless the last one is only seconds old."""
        with self._lock:
            now = None if self.findings is None else self.findings.now
            if now is None or self._now_s() - now.time_s > _FRESH_S:
                self._look()

    def _look(self) -> None:
        self._has_looked = True
        try:
            if self._search.has_python():
                self._count()
        except TargetError as error:
            if self.findings is None:
                self.findings = ObjectFindings(trouble=str(error))
        except (PrivilegeError, MemoryError, OSError) as error:
            self.findings = ObjectFindings(trouble=str(error) or type(error).__name__)

    def _count(self) -> None:
        most_bytes = None if self.most_bytes is None else self.most_bytes // POOL_MEMORY
        now = self._censuses.take_census(most_bytes=most_bytes)
        if not now.block_count:
            raise TargetError(f"process {self._process.pid} is about to end")
        self._history.add_census(now)
        self.on_census(now)
        found = self._censuses.take_found()
        self._first = self._first or now
        if found is not None and self._before is None:
            self._before = ObjectAddresses(found)
        growing = self._history.growing()
        wanted = [one.name for one in growing[:_MOST_TYPES]]
        names, searched_s = self._searched
        is_due = not names.issuperset(wanted) or now.time_s - searched_s > _HOLDERS_S
        if found is not None and wanted and is_due:
            keepers = frozenset(one.name for one in growing)
            self._holders = self._search.find(found, wanted, self._before, keepers)
            self._searched = frozenset(wanted), now.time_s
        # Only the growth that is kept: garbage goes as soon as it is collected.
        shares = {name: found.kept_share for name, found in self._holders.items()}
        kept = [one.scaled(shares.get(one.name, 1)) for one in growing if shares.get(one.name, 1)]
        kept.sort(key=lambda one: -one.bytes_per_min)
        suspects, minor = divide_by_rate(self._suspects(now, kept))
        holders = {
            one.name: self._holders[one.name] for one in growing if one.name in self._holders
        }
        self.findings = ObjectFindings(now, self._first, suspects, minor, holders)

    def _suspects(self, now: ObjectCensus, growing: Sequence[GrowingType]) -> list[TypeSuspect]:
        counts = {one.name: one for one in now.types}
        found = []
        for lead, parts in group_types(growing, self._holders):
            if self._is_bounded(lead.name):
                continue
            holders = self._holders.get(lead.name)
            one = counts[lead.name]
            kept = tuple(part for part in parts if not self._is_bounded(part.name))
            suspect = TypeSuspect(lead, one.count, one.size_bytes, Verdict.GROWING, holders, kept)
            found.append(self._judged(suspect, now.time_s))
        return sorted(found, key=lambda one: -one.bytes_per_min)

    def _is_bounded(self, name: str) -> bool:
        holders = self._holders.get(name)
        return holders is not None and holders.is_bounded

    def _judged(self, suspect: TypeSuspect, now_s: float) -> TypeSuspect:
        """Returns a suspect as a leak if its growth has lasted; before, it may be a cache."""
        watched_s = now_s - suspect.growth.since_s
        resident_bytes = self._process.rss_bytes() or 0
        self._least_rss_bytes = min(self._least_rss_bytes or resident_bytes, resident_bytes)
        has_doubled = doubles_memory(
            suspect.bytes_per_min, watched_s, resident_bytes, resident_bytes - self._least_rss_bytes
        )
        called_s = P.referenced_doubled_s if has_doubled else P.referenced_watch_s
        return suspect if watched_s < called_s else replace(suspect, verdict=Verdict.LEAKING)


def group_types(
    growing: Sequence[GrowingType], holders: Mapping[str, Holders]
) -> list[tuple[GrowingType, list[GrowingType]]]:
    """Groups growing types: (a type that grows independently, types that grow with it).

    A type whose objects are held by objects of another growing type grows because of that one. Of
    types whose objects are items of one container, one stands for all.
    """
    by_name = {one.name: one for one in growing}
    keepers = {
        name: keeper
        for name, found in holders.items()
        for keeper in [found.main_keeper(by_name.keys() - {name})]
        if name in by_name and keeper is not None
    }
    leads: dict[str, str] = {}
    for name in by_name:
        at, seen = name, {name}
        while at in keepers and keepers[at] not in seen:
            at = keepers[at]
            seen.add(at)
        # Of types that hold each other, the one nearest to a root; instances come before their
        # dictionaries, which share the path.
        nearest = min(seen, key=lambda one: (len(_main_path(holders, one)), "." not in one, one))
        leads[name] = nearest if at in keepers else at
    by_place: dict[str, str] = {}
    # Values come before keys, which exist for them.
    for name in sorted(
        set(leads.values()), key=lambda one: (_main_path(holders, one).endswith(KEYS), one)
    ):
        by_place.setdefault(_place(holders, name) or name, name)
    leads = {name: by_place[_place(holders, lead) or lead] for name, lead in leads.items()}
    groups: dict[str, list[GrowingType]] = {}
    for name, lead in leads.items():
        if name != lead:
            groups.setdefault(lead, []).append(by_name[name])
    return [(one, groups.get(one.name, [])) for one in growing if leads[one.name] == one.name]


def _main_path(holders: Mapping[str, Holders], name: str) -> str:
    found = holders.get(name)
    return found.holders[0].path if found is not None and found.holders else ""


def _place(holders: Mapping[str, Holders], name: str) -> str | None:
    path = _main_path(holders, name)
    return next((path.removesuffix(end) for end in ITEMS if path.endswith(end)), None)
