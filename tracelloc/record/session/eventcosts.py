"""Measures the rate of a process's events, and estimates what the preloaded library costs it."""

from __future__ import annotations

from tracelloc.text import NS_PER_S


class RateMeter:
    """A recent rate of events per second."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        self._rate: float | None = None

    def note(self, now_ns: int, events: int) -> None:
        """Records the number of events so far; to be called now and then."""
        if self._since is None:
            self._since = now_ns, events
        elapsed_ns = now_ns - self._since[0]
        if elapsed_ns >= NS_PER_S:
            self._rate = (events - self._since[1]) * NS_PER_S / elapsed_ns
            self._since = now_ns, events

    def per_second(self, elapsed_ns: int, events: int) -> float:
        """Returns the rate of the last second or so; before that, of all ``elapsed_ns``."""
        if self._rate is not None:
            return self._rate
        return events * NS_PER_S / max(1, elapsed_ns)


class EventCosts:
    """The rate of a process's events, and an estimate of what the preloaded library costs it."""

    def __init__(self) -> None:
        self._rate, self._waits = RateMeter(), RateMeter()
        self._costs: tuple[float, float] | None = None

    def note(self, now_ns: int, events: int, costs: tuple[float, float] | None) -> None:
        """Records the number of events so far, and ``SourceLink.costs``."""
        self._rate.note(now_ns, events)
        self._costs = costs
        if costs is not None:
            self._waits.note(now_ns, int(costs[1]))

    def rate(self, elapsed_ns: int, events: int) -> float:
        """Returns events per second; see ``RateMeter.per_second``."""
        return self._rate.per_second(elapsed_ns, events)

    def share(
        self, elapsed_ns: int, rate: float, cores: float | None, probe_share: float | None
    ) -> float | None:
        """Returns the share of CPU time that tracing takes, 0 to 1; waits count as CPU time.

        ``probe_share``: that of the probes. ``cores``: processors in use. None if unknown.
        """
        if self._costs is None or not cores:
            return probe_share
        event_ns, waited_ns = self._costs
        # The library of a newly executed program begins at 0.
        waiting = max(0.0, self._waits.per_second(elapsed_ns, int(waited_ns)))
        share = (rate * event_ns + waiting) / (cores * NS_PER_S + waiting)
        return min(1.0, (probe_share or 0.0) + share)
