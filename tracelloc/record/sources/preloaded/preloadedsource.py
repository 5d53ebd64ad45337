"""The preloaded library as a source of events: one process's shared memory at a time."""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.codefiles import Mapping
from tracelloc.model.events import NO_PAIRS, EventBatch, Miss, SentStacks, joined_batch
from tracelloc.model.losses import Counter
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.identity import is_in_our_container
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.preloaded.sharedarea import SharedArea

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CALLS: Final = (
    # As the library calls them (probes/preloaded/kernel.h); arguments that can do no harm.
    (3, -1), (10, 0, 0, 0), (11, 0, 0), (14, 0, 0, 0, 8), (17, -1, 0, 0, 0), (21, 0, 0),
    (25, 0, 0, 0, 0), (28, 0, 0, 0), (35, 0, 0), (39,), (72, -1, 1033, 0), (77, -1, 0), (186,),
    (193, -1, 0, 0, 0), (302, 0, 9, 0, 0), (310, 0, 0, 0, 0, 0, 0), (319, 0, 0), (324, 4, 0),
)  # fmt: skip


def shared_filters(process: Process) -> int:
    """Returns how many filters (seccomp) shared with a process permit the library's system calls.

    Under others it makes none, since that might end the program. A descendant inherits tracelloc's;
    a container's engine sets the same for each process.
    """
    own = Process(os.getpid())
    is_child = process.parent_pid() == own.pid or process.tracer_id() in own.thread_ids()
    is_shared = own.has_seccomp_filter() and (is_child or is_in_our_container(process))
    return own.seccomp_filters() if is_shared and may_vouch() else 0


@cache
def may_vouch() -> bool:
    """Returns whether tracelloc's own filters permit the library's system calls, by trying."""
    own = Process(os.getpid())
    if not own.has_seccomp_filter():
        return True
    if not own.seccomp_filters():  # the kernel does not count them, so new ones would not be seen
        return False
    pid = os.fork()
    if not pid:
        for call in _CALLS:
            _LIBC.syscall(*(ctypes.c_long(word) for word in call))
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


_WAITS_MS: Final = 0, 10  # The reader must poll: the process makes no system call to wake it
_IDLE_WAITS_MS: Final = 100, 100  # Used while there is nothing to read

_NONE: Final = (1 << 64) - 1, 0  # Sizes of which there are no blocks, nor frees


class PreloadedSource:
    """The ``EventSource`` that reads the preloaded library's shared memory."""

    def __init__(
        self,
        config: CaptureConfig,
        *,
        say: Callable[[str], None],
        attach: Callable[[int, Sequence[ProbePoint]], Attachment],
        is_alone: bool = False,
        spares_runtimes: bool = False,
        max_stall_s: float = 1.0,
        in_parts: bool = False,
    ) -> None:
        """``say`` is told whether library or probes report, and why; ``attach`` puts a probe on the
        library's marker; ``is_alone``: no probes can take over; ``spares_runtimes``: leaves
        programs with supported runtimes to probes; ``max_stall_s``: see ``SharedArea.set_up``;
        ``in_parts``: whether nothing is reported at first, and memory is cleared.
        """
        self._in_parts = in_parts
        self.area: SharedArea | None = None
        self.say, self.attach, self.spares_runtimes = say, attach, spares_runtimes
        self.is_alone = is_alone
        self._config, self._max_stall_s = config, max_stall_s
        self._is_live = False
        self._words: SpaceControl | None = None
        self._earlier = np.zeros(len(Counter), np.uint64)  # Counters of areas already closed
        # An area that is closed once its last reports are taken
        self._last: SharedArea | None = None
        self.failure: Exception | None = None  # Why the current area could not be read

    def connect(self, process: Process, mapping: Mapping, words: SpaceControl) -> None:
        """Takes events from a process's library from now on. Raises TargetError."""
        config, inherited = self._config, shared_filters(process) if self.is_alone else 0
        area = SharedArea(process, mapping, words.image, inherited)
        area.set_up(
            max_frames=config.max_frames,
            # Until a part begins, nothing is reported.
            sizes=_NONE if self._in_parts else (config.min_block_bytes, config.max_block_bytes),
            sample_bytes=config.sample_bytes,
            max_stall_s=self._max_stall_s,
            clears=self._in_parts,
        )
        assert words.rows is not None
        words.rows.move(area.rows)
        words.walk_elsewhere(area.space)
        self.area, self._words, self.failure = area, words, None
        if self._is_live:
            area.switch_on()

    def disconnect(self) -> None:
        """Disconnects from the current memory image. May be called twice."""
        area, words = self.area, self._words
        if area is None or words is None:
            return
        self.area = self._words = None
        assert words.rows is not None
        words.rows.move(words.rows.own, copies=not self.is_alone)
        words.walk_elsewhere(None)
        area.switch_off()
        self._close_last()
        self._last = area

    def _close_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            self._earlier += last.counters()
            last.close()

    @property
    def _areas(self) -> list[SharedArea]:
        current = None if self.failure is not None else self.area
        return [area for area in (self._last, current) if area is not None]

    @property
    def waits_ms(self) -> tuple[int, int]:
        """How long the source may be left unread, with many events and with few."""
        return _IDLE_WAITS_MS if self.area is None else _WAITS_MS

    @property
    def is_urgent(self) -> bool:
        """Whether the source is in use: its rings are small, and threads wait for a full one."""
        return self.area is not None

    @property
    def is_quiet(self) -> bool:
        """Whether the process has reported nothing since events were last taken."""
        return self.area is None or self.area.is_quiet

    def take_events(self) -> EventBatch:
        """Takes all complete events of the process, in order."""
        batches = (
            EventBatch(a.take_events(), NO_PAIRS, a.ring_share, overflowed=False, image=a.image)
            for a in self._areas
        )
        return joined_batch(list(batches))

    @property
    def has_stacks(self) -> bool:
        """Whether there may be stacks or misses to take."""
        return any(area.records.has_more for area in self._areas)

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes all stacks: (memory image, its call stacks); also of a disconnected area."""
        sent = [stacks for area in self._areas for stacks in area.records.take_stacks()]
        self._close_last()
        return sent

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` stacks that user space must finish."""
        found: list[Miss] = []
        for area in self._areas:
            found += area.records.take_misses(most - len(found))
        return found

    def counters(self) -> npt.NDArray[np.uint64]:
        """Returns the sums of all areas' counters, indexed by ``Counter``."""
        areas = [area for area in (self._last, self.area) if area is not None]
        return sum((area.counters() for area in areas), start=self._earlier.copy())

    def set_live(self, live: bool) -> None:
        """Starts or stops the process's reports of events."""
        self._is_live = live
        if self.area is not None and live:
            self.area.switch_on()
        elif self.area is not None:
            self.area.switch_off()

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Makes the rings of ended threads available again; returns 0, as no calls are dropped."""
        if self.area is not None and self.area.pid == pid:
            self.area.release_rings(is_gone)
        return 0

    def fail(self, error: Exception) -> None:
        """Stops reading the area, so that probes take over (``PreloadedLink``)."""
        if self.area is None:
            self._close_last()
        self.failure = error

    def close(self) -> None:
        """Stops the reports and frees all areas. Nothing can be taken afterwards."""
        self.disconnect()
        self._close_last()
