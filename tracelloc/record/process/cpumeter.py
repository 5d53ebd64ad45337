"""Measures a process's use of processors over some seconds, so that the figure is steady."""

from __future__ import annotations

from collections import deque
from typing import Final

from tracelloc.text import NS_PER_S

_EVERY_NS: Final = NS_PER_S
_WINDOW: Final = 10
"""Number of samples, one per second."""


class CpuMeter:
    """Samples of CPU time over time."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def is_due(self, now_ns: int) -> bool:
        """Returns whether another sample is due."""
        return not self._samples or now_ns - self._samples[-1][0] >= _EVERY_NS

    def note(self, now_ns: int, cpu_ns: int | None) -> None:
        """Adds a sample; ``cpu_ns`` is None once the process is gone."""
        if cpu_ns is not None:
            self._samples.append((now_ns, cpu_ns))

    @property
    def cores(self) -> float | None:
        """Processors in use, 1.0 for one used all the time; None until known."""
        if len(self._samples) < 2:
            return None
        (start_ns, before_ns), (end_ns, cpu_ns) = self._samples[0], self._samples[-1]
        return max(0, cpu_ns - before_ns) / max(1, end_ns - start_ns)
