"""The log of gaps: periods in which events of a process were missed."""

import time
from dataclasses import replace
from typing import Final

from tracelloc.model.losses import Gap, count_lost
from tracelloc.record.session.probeset import ProbeSet
from tracelloc.record.sources.eventsource import Sources

LOST: Final = "tracelloc could not keep up"
_OFTEN_S: Final = 0.2
_TOGETHER_S: Final = 5.0  # Losses that follow each other more closely are one gap
_MOST: Final = 32  # Gaps that are recorded separately; later ones extend the last


class GapLog:
    """The gaps in the trace of one process. Not thread safe."""

    def __init__(self, sources: Sources, probes: ProbeSet) -> None:
        self._sources, self._probes = sources, probes
        self._checked_s = time.time()
        self._lost = count_lost(sources.counters())  # In all processes together
        self.gaps: tuple[Gap, ...] = ()  # In the order of their starts

    def run_due(self, *, is_last: bool = False) -> None:
        """Records gaps since the last call; does so at most every 0.2 s, unless ``is_last``."""
        before_s, now_s = self._checked_s, time.time()
        if 0 <= now_s - before_s < _OFTEN_S and not is_last:
            return
        self._checked_s = now_s
        lost, self._lost = self._lost, count_lost(self._sources.counters())
        if self._lost > lost:
            self._add(Gap(before_s, self._checked_s, self._lost - lost, LOST))
        flaw, end = self._probes.take_trouble()
        if flaw:
            self._add(Gap(before_s, None if end else self._checked_s, None, flaw))

    def forget(self) -> None:
        """Forgets the gaps that have ended; called when figures begin again."""
        self.run_due(is_last=True)
        self.gaps = tuple(gap for gap in self.gaps if gap.end_s is None)

    def end(self, reason: str) -> None:
        """Records that events are missed from now on. May be called from any thread."""
        self._add(Gap(self._checked_s, None, None, reason))

    def _add(self, new: Gap) -> None:
        last = self.gaps[-1] if self.gaps else None
        if last is None or last.end_s is None or new.end_s is None:
            self.gaps = (*self.gaps, new)
            return
        is_same = last.reason == new.reason and new.start_s - last.end_s <= _TOGETHER_S
        if not is_same and len(self.gaps) < _MOST:
            self.gaps = (*self.gaps, new)
            return
        lost = None
        if last.lost_events is not None and new.lost_events is not None:
            lost = last.lost_events + new.lost_events
        self.gaps = (*self.gaps[:-1], replace(last, end_s=new.end_s, lost_events=lost))
