"""Finds growing types of a Python program: those that grow steadily, beyond all earlier counts.

A type that fills a cache or is imported grows in some part of the time. Objects that come and go
vary in number. A leaking type grows in nearly every part of the time, up to now, and by the middle
of that time there are more of its objects than ever before.
"""

from typing import Final

import numpy as np

from tracelloc.model.figures import F64, Mask
from tracelloc.model.objects import LEAST_GROWING_S, GrowingType, ObjectCensus
from tracelloc.record.runtimes.cpython.pools import I64

_MOST_POINTS: Final = 64
# Censuses that are all kept; of older ones, every second is dropped when there are too many.
_NEW_POINTS: Final = 16
# Parts into which the time is divided, each at least from one census to the next.
_LEAST_PARTS, _MOST_PARTS = 5, 10
# Share of the parts in which a type must grow; the last part must be among them.
_GROWN_SHARE: Final = 0.75
# Share of the mean growth of a part below which a part does not count as growing.
_LEAST_SHARE: Final = 0.3
# Numbers of censuses that are judged together, in addition to all of them.
_LENGTHS: Final = (6, 7, 8, 10, 12, 16, 23, 32, 45)
_LEAST_OBJECTS: Final = 20
_LEAST_LOOKS: Final = 3  # Consecutive censuses in which a type must grow before it is reported
_MOST_DROP: Final = 0.2  # Share of its growth by which a type may drop in between
_LAST_SHARE: Final = 1 / 3
# A type has stopped growing if it did not grow in this last share of the time, within these bounds
# in seconds.
_LAST_S: Final = 20.0, 120.0


class TypeHistory:
    """Counts of objects of each type over time, in columns, to find growing types."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._times_s: list[float] = []
        # By row: since when the types grow that `growing` reported last
        self._since_s: dict[int, float] = {}
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
    least = _LEAST_SHARE * total[:, None] * np.diff(at_s) / (at_s[-1] - at_s[0])
    grown = parts >= least
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
