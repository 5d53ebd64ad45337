"""Live bytes of each stack over time: a bounded number of samples at growing intervals.

Starts with a sample per second. If there is no room for another one, every second sample is
dropped and the interval doubles. So the samples always cover the whole traced time, with at
least half of them in use, at up to 256 bytes per stack. A sample is never modified, so copies
share them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.text import NS_PER_S

I64 = npt.NDArray[np.int64]

SAMPLES: Final = 32
"""Most samples kept; even."""
_FIRST_DISTANCE_NS: Final = NS_PER_S


class History:
    """Outstanding bytes per stack at past times, CLOCK_MONOTONIC."""

    def __init__(self, start_ns: int, live_bytes: I64 | None = None) -> None:
        """``live_bytes``: outstanding at the start, per stack; None if nothing was."""
        self._distance_ns = _FIRST_DISTANCE_NS
        self._next_ns = start_ns + self._distance_ns
        self._times = [start_ns]
        self._held = [np.zeros(0, np.int64) if live_bytes is None else live_bytes]
        """By time, then by stack; stacks that came later are missing at the end."""

    @classmethod
    def of(cls, times_ns: list[int], held: list[I64]) -> History:
        """A history from samples that were taken elsewhere, oldest first."""
        history = cls(times_ns[0])
        history._times, history._held = times_ns, held
        return history

    def __len__(self) -> int:
        return len(self._times)

    def is_due(self, now_ns: int) -> bool:
        """Whether a sample is due."""
        return now_ns >= self._next_ns

    def sample(self, now_ns: int, live_bytes: I64) -> None:
        """Adds a sample of all stacks. The array must not change afterwards."""
        if len(self._times) == SAMPLES:
            self._times, self._held = self._times[::2], self._held[::2]
            self._distance_ns *= 2
        self._held.append(live_bytes)
        self._times.append(now_ns)
        # Missed samples are not taken later.
        self._next_ns = max(self._next_ns + self._distance_ns, now_ns + 1)

    def growth_per_min(self, now_ns: int, live_bytes: I64, over_ns: int = 60 * NS_PER_S) -> I64:
        """Bytes per minute by which each stack grew until now, since the newest sample that is
        at least ``over_ns`` old (or since the start).
        """
        at = max(
            n for n, time_ns in enumerate(self._times) if n == 0 or now_ns - time_ns >= over_ns
        )
        elapsed_ns = max(1, now_ns - self._times[at])
        grown = live_bytes.astype(np.float64)
        before = self._held[at][: len(grown)]
        grown[: len(before)] -= before
        return np.rint(grown * (60.0 * NS_PER_S / elapsed_ns)).astype(np.int64)

    @property
    def times_ns(self) -> list[int]:
        """When the samples were taken, oldest first."""
        return list(self._times)

    def at(self, time_ns: int) -> I64:
        """The sample taken at one of these times, indexed by stack."""
        return self._held[self._times.index(time_ns)]

    def total(self) -> tuple[list[int], list[int]]:
        """(times in ns, outstanding bytes of all stacks then), oldest first."""
        return list(self._times), [int(held.sum()) for held in self._held]

    def copy(self) -> History:
        """An unchanging copy of the current state."""
        copy = History(self._times[0])
        copy._times, copy._held = list(self._times), list(self._held)
        return copy

    def held(self) -> tuple[list[int], I64]:
        """(times in ns, outstanding bytes then): a row per stack, a column per time.

        Stacks that have had no live blocks yet may be missing at the end.
        """
        table = np.zeros((max(map(len, self._held)), len(self._times)), np.int64)
        for column, held in enumerate(self._held):
            table[: len(held), column] = held
        return list(self._times), table

    def series(self, stack: int) -> tuple[list[int], list[int]]:
        """(times in ns, outstanding bytes then) of one stack, oldest first."""
        held = [int(held[stack]) if stack < len(held) else 0 for held in self._held]
        return list(self._times), held
