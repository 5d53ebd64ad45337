"""Keeps account of what probes cost the target, to say when they have to come off.

The limit is a share of the CPU time that the target needs for its own work. What the probes cost
is a debt, which the target's work pays back: for each second of work, that share of a second. A
window may run up the debt of a minute's work. Then the probes are off until it is paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelloc.text import NS_PER_S

PERIOD_S: Final = 60.0
"""Probes may use up what they are granted for so much time ahead."""
_LONGEST_PERIODS: Final = 5
"""Debts are forgotten after so many periods without probes: the target may have gone idle."""
_SAFETY: Final = 1.25
"""Estimates of the cost are taken so many times: they leave out what probes do to caches."""
_LEAST_DEBT_NS: Final = 10_000_000
"""What never takes probes off: CPU time is known in steps of this."""
_BATCH_NS: Final = 50_000_000
_BATCH_S: Final = 1.0
"""So much CPU time, or time, is counted at once, to be well above these steps."""
_RATE_S: Final = 10.0
"""The target's use of processors is averaged over about this time."""


@dataclass(frozen=True, slots=True)
class OverheadLimit:
    """What the option ``--max-overhead`` asks for."""

    share: float
    """CPU time that probes may cost, per CPU time of the target's own work: 0.05 is 5 %."""
    period_s: float = PERIOD_S


class OverheadAccount:
    """One thread calls ``add``, another one the rest."""

    def __init__(self, limit: OverheadLimit) -> None:
        self.limit = limit
        self.must_pause = False
        """Whether the probes are to be off now."""
        self._debt_ns = 0.0
        self._paused_s = 0.0
        self._own_cores: float | None = None
        """Processors that the target's own work uses, lately."""
        self._probe_ns = self._cpu_ns = 0.0
        self._batch = 0.0, 0.0, 0.0
        """CPU time of probes and of the target in ns, and seconds, that are to be counted."""

    @property
    def share(self) -> float | None:
        """The probes' part of the target's CPU time so far, windows without probes included."""
        return self._probe_ns / self._cpu_ns if self._cpu_ns else None

    def add(self, probe_ns: float, cpu_ns: float, elapsed_s: float) -> None:
        """Counts a stretch of time: CPU time of the probes, and of the target with the probes."""
        probe_ns, cpu_ns = self._batch[0] + probe_ns, self._batch[1] + cpu_ns
        elapsed_s += self._batch[2]
        self._batch = probe_ns, cpu_ns, elapsed_s
        if cpu_ns < _BATCH_NS and elapsed_s < _BATCH_S:
            return
        self._batch = 0.0, 0.0, 0.0
        self._probe_ns += min(cpu_ns, probe_ns)
        self._cpu_ns += cpu_ns
        self._count(min(cpu_ns, _SAFETY * probe_ns), cpu_ns, elapsed_s)

    def _count(self, probe_ns: float, cpu_ns: float, elapsed_s: float) -> None:
        work_ns, share = cpu_ns - probe_ns, self.limit.share
        cores = work_ns / NS_PER_S / max(elapsed_s, 1e-6)
        before = cores if self._own_cores is None else self._own_cores
        self._own_cores = before + (cores - before) * min(1.0, elapsed_s / _RATE_S)
        self._debt_ns = max(0.0, self._debt_ns + probe_ns - share * work_ns)
        if not self.must_pause:
            ahead_ns = share * self._own_cores * self.limit.period_s * NS_PER_S
            self.must_pause = self._debt_ns > max(ahead_ns, _LEAST_DEBT_NS)
            self._paused_s = 0.0
            return
        self._paused_s += elapsed_s
        if self._paused_s >= _LONGEST_PERIODS * self.limit.period_s:
            self._debt_ns = 0.0
        self.must_pause = self._debt_ns > 0
