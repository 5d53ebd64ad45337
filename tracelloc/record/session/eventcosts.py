"""Measures what tracing and following cost the processes: CPU time, stops and waits."""

from collections import deque
from collections.abc import Callable
from typing import Final

from tracelloc.model.process import FollowCounts
from tracelloc.record.process.procfs import Process
from tracelloc.text import NS_PER_S

_WINDOW_NS: Final = 5 * NS_PER_S
# Share of time in which some process waits for tracelloc; users are warned above it.
_MOST_SHARE: Final = 0.5


class FollowCosts:
    """Counts stops of followed processes; warns once if they take too long. Not thread safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._has_said = False
        self.counts = FollowCounts()
        self._window_start_ns = 0
        self._before = self.counts

    def add_stop(self, start_ns: int, end_ns: int, *, forks: int = 0, execs: int = 0) -> None:
        """Adds the time that a process was stopped (CLOCK_MONOTONIC)."""
        was = self.counts
        self.counts = FollowCounts(
            was.forks + forks, was.execs + execs, was.stopped_ns + end_ns - start_ns
        )
        elapsed_ns = end_ns - self._window_start_ns
        if elapsed_ns >= _WINDOW_NS:
            if self._window_start_ns and not self._has_said:
                self._judge(elapsed_ns)
            self._window_start_ns, self._before = end_ns, self.counts

    def _judge(self, elapsed_ns: int) -> None:
        now, before, per_s = self.counts, self._before, NS_PER_S / elapsed_ns
        share = (now.stopped_ns - before.stopped_ns) / elapsed_ns
        if share > _MOST_SHARE:
            self._has_said = True
            self._say(
                f"warning: processes wait {share:.0%} of the time to be followed "
                f"({(now.forks - before.forks) * per_s:.0f} forks and "
                f"{(now.execs - before.execs) * per_s:.0f} programs per second); "
                "--follow=NAME,... follows only commands of these names"
            )


_EVERY_NS: Final = NS_PER_S
_WINDOW: Final = 10  # Samples of CPU time, one per second: their mean is steady


class CpuMeter:
    """Measures how many processors a process uses, by samples of its CPU time."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def is_due(self, now_ns: int) -> bool:
        return not self._samples or now_ns - self._samples[-1][0] >= _EVERY_NS

    def add_sample(self, now_ns: int, cpu_ns: int | None) -> None:
        """Adds a sample of CPU time; ``cpu_ns`` is None once the process is gone."""
        if cpu_ns is not None:
            self._samples.append((now_ns, cpu_ns))

    @property
    def cores(self) -> float | None:
        """Mean number of processors in use (1.0: one, all the time); None until known."""
        if len(self._samples) < 2:
            return None
        (start_ns, before_ns), (end_ns, cpu_ns) = self._samples[0], self._samples[-1]
        return max(0, cpu_ns - before_ns) / max(1, end_ns - start_ns)


class RateMeter:
    """Measures the recent rate of events per second."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        self._rate: float | None = None

    def record_count(self, now_ns: int, events: int) -> None:
        if self._since is None:
            self._since = now_ns, events
        elapsed_ns = now_ns - self._since[0]
        if elapsed_ns >= NS_PER_S:
            self._rate = (events - self._since[1]) * NS_PER_S / elapsed_ns
            self._since = now_ns, events

    def per_second(self, elapsed_ns: int, events: int) -> float:
        """Returns events per second in the last second or so; at first, over ``elapsed_ns``."""
        return events * NS_PER_S / max(1, elapsed_ns) if self._rate is None else self._rate


class EventCosts:
    """The rate of a process's events, and an estimate of what tracing costs it."""

    def __init__(self) -> None:
        self.rate, self._waits, self.cpu = RateMeter(), RateMeter(), CpuMeter()
        self._costs: tuple[float, float] | None = None

    def record_counts(
        self, now_ns: int, events: int, costs: tuple[float, float] | None, process: Process
    ) -> None:
        """Records the total number of events so far, and ``costs`` (see ``PreloadedLink``)."""
        if self.cpu.is_due(now_ns):
            self.cpu.add_sample(now_ns, process.cpu_ns())
        self.rate.record_count(now_ns, events)
        self._costs = costs
        if costs is not None:
            self._waits.record_count(now_ns, int(costs[1]))

    def share(self, elapsed_ns: int, rate: float, probe_share: float | None) -> float | None:
        """Returns the share of CPU time that tracing takes, 0 to 1; waits count as CPU time.

        ``probe_share``: the probes' share, or None. Returns None if both costs are unknown.
        """
        cores = self.cpu.cores
        if self._costs is None or not cores:
            return probe_share
        event_ns, waited_ns = self._costs
        # The library of a newly executed program begins at 0.
        waiting = max(0.0, self._waits.per_second(elapsed_ns, int(waited_ns)))
        share = (rate * event_ns + waiting) / (cores * NS_PER_S + waiting)
        return min(1.0, (probe_share or 0.0) + share)
