"""A capture with a second source: the probes, and what a preloaded process reports by itself.

Events, stacks and misses of both come by the same ways, so nobody who takes them need know. No
address is reported by both: a process's C library has no probes while its lane is in use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.codefiles import Mapping
from tracelloc.model.counters import Counter
from tracelloc.model.events import EVENT_DTYPE, SentStacks
from tracelloc.record import abi
from tracelloc.record.kernel.bpf import Capture
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.drain import PAIR_DTYPE, Drain, EventBatch, StackDrain
from tracelloc.record.kernel.method import Method
from tracelloc.record.kernel.ring import Miss, MissRing
from tracelloc.record.kernel.spacewords import SpaceWords
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.preloaded.sharedarea import Lane

_WAITS_MS: Final = 0, 10
"""Nobody wakes the reader: the process makes no system call for it."""


class LaneCapture(Capture):
    """The probes, and at most one process's lane at a time."""

    def __init__(
        self,
        config: CaptureConfig,
        method: Method | None = None,
        *,
        say: Callable[[str], None],
        clock: int | None = None,
        spares_python: bool = False,
        max_stall_s: float = 1.0,
        debug: bool = False,
    ) -> None:
        """``say`` is told what the lane is used for; ``clock``, ``max_stall_s``: see
        ``Lane.set_up``.
        """
        super().__init__(config, method, debug=debug)
        self.lane: Lane | None = None
        self.say = say
        self.spares_python = spares_python
        self._clock, self._max_stall_s = clock, max_stall_s
        self._is_live = False
        self._words: SpaceWords | None = None
        self._earlier = np.zeros(len(Counter), np.uint64)
        """Counters of lanes that are no more."""
        self._last: Lane | None = None
        """A lane that is closed once what it has reported last is taken."""
        assert self.misses is not None
        assert self.rows is not None
        self._probe_rows = self._shared("rows", abi.ROW_SET_DTYPE, config.row_sets)
        self.misses: MissRing = _Misses(self, self.misses)
        self.stacks: StackDrain = _Stacks(self, self.stacks)
        self.drain: Drain = _Events(self, self.drain)

    def connect(self, process: Process, mapping: Mapping, words: SpaceWords) -> None:
        """Takes a process's events from its lane from here on. Raises TargetError."""
        assert self.rows is not None
        lane = Lane(process, mapping, words.image)
        lane.set_up(
            max_frames=self.config.max_frames,
            min_size=self.config.min_block_bytes,
            max_size=self.config.max_block_bytes,
            sample_bytes=self.config.sample_bytes,
            clock=self._clock,
            max_stall_s=self._max_stall_s,
        )
        self.rows.move(lane.rows)
        words.walk_elsewhere(lane.space)
        self.lane, self._words = lane, words
        self.waits_ms = _WAITS_MS
        if self._is_live:
            lane.switch_on()

    def disconnect(self) -> None:
        """The memory image is no more, or there is no use for it. May be called twice."""
        lane, words = self.lane, self._words
        if lane is None or words is None:
            return
        self.lane = self._words = None
        self.waits_ms = Capture.waits_ms
        assert self.rows is not None
        self.rows.move(self._probe_rows)
        words.walk_elsewhere(None)
        lane.switch_off()
        self.close_last()
        self._last = lane

    def close_last(self) -> None:
        """Closes the last lane, if there was one: all that it has reported is taken."""
        last, self._last = self._last, None
        if last is not None:
            self._earlier += last.counters()
            last.close()

    @property
    def sources(self) -> list[Lane]:
        """The lanes that events come from: the last one, whose events come before all others'."""
        return [lane for lane in (self._last, self.lane) if lane is not None]

    def set_live(self, live: bool) -> None:
        """Lets both report, or stops them."""
        self._is_live = live
        super().set_live(live)
        if self.lane is not None:
            if live:
                self.lane.switch_on()
            else:
                self.lane.switch_off()

    def counters(self) -> npt.NDArray[np.uint64]:
        """See ``Capture``; of both."""
        counters = super().counters() + self._earlier
        return sum((lane.counters() for lane in self.sources), start=counters)

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """See ``Capture``; gives back the threads' rings as well."""
        if self.lane is not None:
            self.lane.release_rings(is_gone)
        return super().forget_threads(pid, is_gone)

    def close(self) -> None:
        """See ``Capture``."""
        self.disconnect()
        self.close_last()
        super().close()


_NO_PAIRS: Final = np.empty(0, PAIR_DTYPE)


def _lane_batch(lane: Lane) -> EventBatch:
    events = lane.take()
    return EventBatch(events, _NO_PAIRS, lane.ring_share, overflowed=False, image=lane.image)


class _Events(Drain):
    """Events of both."""

    def __init__(self, capture: LaneCapture, probes: Drain) -> None:
        self._capture = capture
        self._probes = probes

    @property
    def overflows(self) -> int:  # type: ignore[override]
        """How often the probes' ring was full: the lane's are waited for."""
        return self._probes.overflows

    @property
    def is_hasty(self) -> bool:  # type: ignore[override]
        """Whether there is a lane: its rings are small, and a thread waits for a full one."""
        return self._capture.lane is not None

    @property
    def is_quiet(self) -> bool:  # type: ignore[override]
        """Whether nothing has come by it; to be asked without the session's lock, too."""
        lane = self._capture.lane
        return lane is not None and lane.is_quiet

    def take_hasty(self) -> tuple[EventBatch, bool]:
        """The lane's events. Raises TargetError."""
        lane = self._capture.lane
        assert lane is not None
        return _lane_batch(lane), lane.has_records

    def take(self) -> EventBatch:
        """All that is there: what lanes have reported comes before what probes report."""
        batches = [_lane_batch(lane) for lane in self._capture.sources]
        batches.append(self._probes.take())
        some = [batch for batch in batches if batch]
        if len(some) < 2:
            return some[0] if some else batches[0]
        joined = np.concatenate([batch.events.view(np.uint8) for batch in some])
        return EventBatch(
            joined.view(EVENT_DTYPE),
            batches[-1].pairs,
            max(batch.ring_share for batch in batches),
            batches[-1].overflowed,
        )

    def close(self) -> None:
        """See ``Drain``."""
        self._probes.close()


class _Stacks(StackDrain):
    """Stacks of both."""

    def __init__(self, capture: LaneCapture, probes: StackDrain) -> None:
        self._capture = capture
        self._probes = probes

    def take(self) -> list[tuple[int, SentStacks]]:
        """All that are there. Nothing of a lane that is no more comes after them."""
        sent = [stacks for lane in self._capture.sources for stacks in lane.take_stacks()]
        self._capture.close_last()
        return sent + self._probes.take()


class _Misses(MissRing):
    """Misses of both."""

    def __init__(self, capture: LaneCapture, probes: MissRing) -> None:
        self._capture = capture
        self._probes = probes

    def take(self, most: int) -> list[Miss]:
        """Up to so many."""
        found = self._probes.take(most)
        for lane in self._capture.sources:
            found += lane.take_misses(most - len(found))
        return found
