"""How much each stack held over time: a fixed number of samples, ever further apart.

Starts with a sample per second. When there is no room for another one, every second
sample is dropped and the distance doubles: the whole traced time is always covered,
with at least half of the samples in use, at 256 bytes per stack.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.units import NS_PER_S

I64 = npt.NDArray[np.int64]

SAMPLES: Final = 32
"""Most samples kept; even."""
_FIRST_DISTANCE_NS: Final = NS_PER_S


class History:
    """Outstanding bytes per stack at past moments, CLOCK_MONOTONIC."""

    def __init__(self, start_ns: int) -> None:
        self._distance_ns = _FIRST_DISTANCE_NS
        self._next_ns = start_ns + self._distance_ns
        self._times = [start_ns]
        # A column per sample, a row per stack. Nothing was outstanding at the start.
        self._held = np.zeros((64, SAMPLES), np.int64)

    def __len__(self) -> int:
        return len(self._times)

    def is_due(self, now_ns: int) -> bool:
        """Whether a sample is to be taken."""
        return now_ns >= self._next_ns

    def sample(self, now_ns: int, live_bytes: I64) -> None:
        """Notes what every stack holds now."""
        if len(self._times) == SAMPLES:
            self._thin_out()
        stacks = len(live_bytes)
        if stacks > len(self._held):
            grown = np.zeros((max(stacks, 2 * len(self._held)), SAMPLES), np.int64)
            grown[: len(self._held)] = self._held
            self._held = grown
        self._held[:stacks, len(self._times)] = live_bytes
        self._times.append(now_ns)
        # Samples that were missed are not made up for.
        self._next_ns = max(self._next_ns + self._distance_ns, now_ns + 1)

    def _thin_out(self) -> None:
        half = SAMPLES // 2
        self._held[:, :half] = self._held[:, ::2].copy()
        self._held[:, half:] = 0
        self._times = self._times[::2]
        self._distance_ns *= 2

    def growth_per_min(self, now_ns: int, live_bytes: I64, over_ns: int = 60 * NS_PER_S) -> I64:
        """Bytes per minute by which each stack grew, from the newest sample that is at
        least ``over_ns`` old (the start, while there is none) until now.
        """
        at = max(
            n for n, time_ns in enumerate(self._times) if n == 0 or now_ns - time_ns >= over_ns
        )
        elapsed_ns = max(1, now_ns - self._times[at])
        before = np.zeros(len(live_bytes), np.int64)
        known = min(len(before), len(self._held))
        before[:known] = self._held[:known, at]
        grown = (live_bytes - before).astype(np.float64)
        return np.rint(grown * (60.0 * NS_PER_S / elapsed_ns)).astype(np.int64)

    def total(self) -> tuple[list[int], list[int]]:
        """(times in ns, outstanding bytes of all stacks then), oldest first."""
        return list(self._times), self._held[:, : len(self._times)].sum(axis=0).tolist()

    def copy(self, stacks: int) -> History:
        """An independent copy of what the first ``stacks`` stacks held."""
        copy = History(self._times[0])
        copy._distance_ns = self._distance_ns
        copy._next_ns = self._next_ns
        copy._times = list(self._times)
        copy._held = self._held[:stacks].copy()
        return copy

    def held(self) -> tuple[list[int], I64]:
        """(times in ns, outstanding bytes then): a row per stack, a column per time.

        There may be fewer rows than stacks: the others have held nothing yet. Read only.
        """
        return list(self._times), self._held[:, : len(self._times)]

    def series(self, stack: int) -> tuple[list[int], list[int]]:
        """(times in ns, outstanding bytes then) of one stack, oldest first."""
        if stack >= len(self._held):
            return list(self._times), [0] * len(self._times)
        return list(self._times), self._held[stack, : len(self._times)].tolist()
