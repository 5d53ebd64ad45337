"""Accounts for what probes cost the target, and says when that is more than allowed.

The limit is a share of the CPU time that the target needs for its own work. What the probes cost
is a debt, which the target's work repays: each second of work repays that share of a second. The
debt of a minute's work is allowed, so that a short burst of allocations ends no trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelloc.text import NS_PER_S

PERIOD_S: Final = 60.0  # How far ahead probes may use up their allowance, in seconds
_SAFETY: Final = 1.25  # Estimated costs are multiplied by this: they omit what probes do to caches
_LEAST_DEBT_NS: Final = 10_000_000  # Debt that is always allowed: the resolution of CPU times
_BATCH_NS: Final = 50_000_000
_BATCH_S: Final = 1.0  # CPU time, or time, that is counted at once, well above that resolution
_RATE_S: Final = 10.0  # Averaging time of the target's use of processors


@dataclass(frozen=True, slots=True)
class OverheadLimit:
    """The value of the option ``--max-overhead``."""

    # CPU time that probes may cost, per CPU time of the target's own work: 0.05 is 5 %.
    share: float
    period_s: float = PERIOD_S


class OverheadAccount:
    """An account of probe costs. One thread calls ``add``, another one the rest."""

    def __init__(self, limit: OverheadLimit) -> None:
        self.limit = limit
        self.is_exceeded = False  # Whether the probes have cost more than allowed
        self._debt_ns = 0.0
        self._own_cores: float | None = None  # Processors that the target's own work used lately
        self._probe_ns = self._cpu_ns = 0.0
        # Not yet counted: CPU time of probes and of the target in ns, and seconds
        self._batch = 0.0, 0.0, 0.0

    @property
    def share(self) -> float | None:
        """The probes' share of the target's CPU time so far."""
        return self._probe_ns / self._cpu_ns if self._cpu_ns else None

    def add(self, probe_ns: float, cpu_ns: float, elapsed_s: float) -> None:
        """Counts an interval: CPU time of the probes, and of the target including the probes."""
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
        ahead_ns = share * self._own_cores * self.limit.period_s * NS_PER_S
        self.is_exceeded |= self._debt_ns > max(ahead_ns, _LEAST_DEBT_NS)
