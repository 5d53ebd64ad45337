"""Decides how often the pump reads the rings, and how often it does upkeep."""

import select
import time
from typing import Final

from tracelloc.record.sources.eventsource import Sources

# How full rings should be when they are read. Large batches cost least; the other half is room for
# events while the pump waits for a processor.
_GOAL_SHARE: Final = 1 / 2
_GROWTH: Final = 1.25  # Factor by which one wait may exceed the last one
_NAP_S: Final = 50e-6  # Shorter waits are skipped: falling asleep and waking up takes as long
_WHOLE_S: Final = 5e-3
# How often all rings are read, while events come (`_WHOLE_S`) and while none do.
_IDLE_S: Final = 100e-3
_UPKEEP_S: Final = 20e-3  # How often upkeep is due
_S_PER_MS: Final = 1e-3


class Pace:
    """Adapts the pump's waits to the rate of events. For the pump thread."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._looked_s = self._looked_at_all_s = self._kept_house_s = time.monotonic()
        # Time from one read of the rings to the next
        self._interval_s = sources.waits_ms[0] * _S_PER_MS
        # Whether all rings should be read now, not only those of urgent sources
        self.is_whole = True

    def wait(self, poll: select.epoll) -> list[tuple[int, int]]:
        """Waits until rings should be read or a descriptor is ready. Returns ready descriptors."""
        sources = self._sources
        while True:
            wait_s = self._looked_s + self._interval_s - time.monotonic()
            is_short = wait_s < _S_PER_MS
            if is_short and wait_s > _NAP_S:
                # Timeouts of epoll are in whole milliseconds.
                time.sleep(wait_s)
            since_s = time.monotonic() - self._looked_at_all_s
            self.is_whole = not sources.are_urgent or since_s >= _WHOLE_S
            if is_short and not self.is_whole:
                return []
            ready = poll.poll(0 if is_short else wait_s)
            now_s = time.monotonic()
            if ready or not sources.are_quiet or now_s - self._looked_at_all_s >= _IDLE_S:
                self.is_whole, self._looked_at_all_s = True, now_s
                return ready
            # Nothing has come: reading the rings is not worthwhile.
            self.record_reading(now_s, 0.0)

    def is_upkeep_due(self) -> bool:
        """Whether upkeep is due; True once per interval."""
        now_s = time.monotonic()
        if now_s - self._kept_house_s < _UPKEEP_S:
            return False
        self._kept_house_s = now_s
        return True

    def record_reading(self, looked_s: float, share: float) -> None:
        """Records when rings were read, and how full the fullest ring was (0 to 1)."""
        least_s, most_s = (ms * _S_PER_MS for ms in self._sources.waits_ms)
        since_s = looked_s - self._looked_s
        self._looked_s = looked_s
        next_s = max(since_s, _NAP_S) * _GROWTH
        if share:
            next_s = min(next_s, since_s * _GOAL_SHARE / share)
        self._interval_s = max(least_s, min(most_s, next_s))
