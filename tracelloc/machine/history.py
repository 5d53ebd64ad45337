"""Memory of many processes or groups over an hour, in samples that are sparser with age.

A sample's age decides how close its neighbours may be: within a twentieth of it. So an hour is
some 150 samples, whatever the interval.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.machine.machinememory import WINDOWS_S, MemoryKind, MemoryTrend

LONGEST_S: Final = 3700.0
_LEAST_S: Final = 10.0  # Growth in less time says nothing
_SPACING: Final = 0.05
_DIP: Final = 0.25
# By how much something may shrink without a pause: a part of what it has grown by since then.
_LEAST_DIP_BYTES: Final = 64 << 10
_LEAST_GROWTH_BYTES: Final = 256 << 10  # Less counts as no growth
# Growth has ended if in this part of its time, or so many seconds if that is less, it was slower
# than so much of its average.
_PAUSE: Final = 0.125
_LEAST_PAUSE_S: Final = 30.0
_SLOWER: Final = 0.1

Figures = npt.NDArray[np.int64]


class GrowthHistory:
    """Samples of bytes, with a row per process or group while it exists."""

    def __init__(self, kinds: Sequence[MemoryKind]) -> None:
        """``kinds``: what the figures of a row are."""
        self._kinds = kinds
        # The columns that count as growth
        self._grow = np.array([not kind.is_reclaimable for kind in kinds])
        self._times: list[float] = []
        self._samples: list[Figures] = []
        self._born: list[float] = []
        self._free: list[int] = []

    def add(self, time_s: float) -> int:
        """Returns a new row, whose first figures will be recorded for ``time_s``."""
        if self._free:
            row = self._free.pop()
            self._born[row] = time_s
            return row
        self._born.append(time_s)
        return len(self._born) - 1

    def remove(self, row: int) -> None:
        """Frees the row of a process or group that has ended."""
        self._free.append(row)

    def record(self, time_s: float, figures: dict[int, Sequence[int]]) -> None:
        """Adds a sample: the figures of all rows at ``time_s``, which must increase."""
        sample = np.zeros((len(self._born), len(self._kinds)), np.int64)
        for row, values in figures.items():
            sample[row] = values
        self._times.append(time_s)
        self._samples.append(sample)
        self._thin(time_s)

    def _thin(self, now_s: float) -> None:
        times, kept = self._times, [0]
        for index in range(1, len(times) - 1):
            if times[index + 1] - times[kept[-1]] > _SPACING * (now_s - times[index]):
                kept.append(index)
        kept = [
            index
            for index in dict.fromkeys([*kept, len(times) - 1])
            if now_s - times[index] <= LONGEST_S
        ]
        self._times = [times[index] for index in kept]
        self._samples = [self._samples[index] for index in kept]

    def _before(
        self, rows: Sequence[int], window_s: float | npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], Figures]:
        """Returns times and figures of rows a window (or one each) ago, or of their first samples.

        Shapes: (rows,), (rows, columns); figures of reclaimable kinds are 0.
        """
        chosen = np.asarray(rows, np.intp)
        times = np.asarray(self._times)
        born = np.asarray(self._born)[chosen]
        ago = np.searchsorted(times, times[-1] - window_s, side="right") - 1
        indices = np.maximum(ago, np.searchsorted(times, born))
        figures = np.empty((len(chosen), len(self._kinds)), np.int64)
        for index in np.unique(indices):
            of_index = indices == index
            figures[of_index] = self._samples[index][chosen[of_index]] * self._grow
        return times[indices], figures

    def trends(self, rows: Sequence[int]) -> list[MemoryTrend]:
        """Returns how the memory of each row has changed until the last sample."""
        if not rows:
            return []
        sizes = self._samples[-1][np.asarray(rows, np.intp)]
        now = sizes * self._grow
        rates: list[list[int | None]] = []
        for window_s in WINDOWS_S:
            times, then = self._before(rows, window_s)
            seconds = self._times[-1] - times
            least_s = window_s / 2 if rates else _LEAST_S
            rate = (now - then).sum(axis=1) * 60 / np.maximum(seconds, least_s)
            rates.append([
                round(each) if is_long else None
                for each, is_long in zip(rate.tolist(), (seconds >= least_s).tolist(), strict=True)
            ])  # fmt: skip
        grown = now - self._before(rows, WINDOWS_S[1])[1]
        return [
            MemoryTrend(
                dict(zip(self._kinds, figures, strict=True)), tuple(growth), since,
                self._kinds[column] if by[column] > 0 else None,
            )
            for figures, since, column, by, *growth in zip(
                sizes.tolist(), self._growing_s(rows), grown.argmax(axis=1).tolist(),
                grown.tolist(), *rates, strict=True,
            )
        ]  # fmt: skip

    def _growing_s(self, rows: Sequence[int]) -> list[float]:
        """Returns for how long each row has grown without a pause; 0 if it does not grow.

        That is the longest time until now in which no dip was larger than a part of the growth,
        unless growth has ended meanwhile.
        """
        chosen = np.asarray(rows, np.intp)
        born = np.asarray(self._born)[chosen]
        now = self._samples[-1][chosen][:, self._grow].sum(axis=1)
        least, since = now.copy(), np.full(len(chosen), self._times[-1])
        deepest = np.zeros(len(chosen), np.int64)
        for time_s, sample in zip(self._times[-2::-1], self._samples[-2::-1], strict=True):
            (living,) = np.nonzero(born <= time_s)
            sizes = sample[chosen[living]][:, self._grow].sum(axis=1)
            np.maximum.at(deepest, living, sizes - least[living])
            grown = now[living] - sizes
            is_start = (grown >= _LEAST_GROWTH_BYTES) & (sizes <= least[living])
            is_start &= deepest[living] <= np.maximum(_DIP * grown, _LEAST_DIP_BYTES)
            least[living] = np.minimum(least[living], sizes)
            since[living[is_start]] = time_s
        growing_s = self._times[-1] - since
        recent_s, rates = np.maximum(_LEAST_PAUSE_S, _PAUSE * growing_s), []
        for window_s in (growing_s, recent_s):
            times, then = self._before(rows, window_s)
            rates.append((now - then.sum(axis=1)) / np.maximum(self._times[-1] - times, 1.0))
        return [float(each) for each in np.where(rates[1] > _SLOWER * rates[0], growing_s, 0.0)]
