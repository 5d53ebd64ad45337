"""The thread that takes snapshots periodically and computes the pictures the screen shows."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.ui.picture import NotWantedError, Picture, Pictures
from tracelloc.ui.view import Journal, Settings, TraceSource, View

_PAUSE: Final = 25  # Least time between periodic snapshots, in times of what one takes
_LONGEST_PAUSE_S: Final = 5.0
_IDLE_PAUSE: Final = 4  # Intervals between snapshots while the program does nothing
_FIRST_LOOK_S: Final = 0.1  # Delay before missing names are looked up again; it doubles each time


class Refresher:
    """Takes snapshots periodically and computes pictures of them, or of the last one on demand.

    The thread calls ``publish`` with each picture. It computes the next one only after
    ``shown`` was called, when the last one is on the screen. Any exception ends the thread
    and is passed to ``fail``.
    """

    def __init__(
        self, source: TraceSource, journal: Journal, publish: Callable[[Picture], None],
        fail: Callable[[BaseException], None], interval_s: float | None,
    ) -> None:  # fmt: skip
        """``interval_s``: time between snapshots; None: on demand only, for tests."""
        # Only the thread may use it, also in jobs passed to `run_job`
        self.pictures = Pictures(source, journal, asked=self._repeat)
        self._publish = publish
        self._fail = fail
        self.interval_s = interval_s
        self._changed = threading.Condition()
        self._settings: Settings | None = None
        self._tick = False
        self._frozen = False
        self._final = False
        self._closed = False
        self._in_flight = False
        self._busy = False  # The thread is working, and its picture is not published yet
        self._naming = False  # The last picture lacks names that may still be found
        # Delay from the last picture until missing names are looked up again
        self._look_s = _FIRST_LOOK_S
        self._made_s = 0.0  # When the last picture was computed
        # The settings of the last picture; None if the picture is out of date
        self._done: Settings | None = None
        self._jobs: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._work, name="refresher", daemon=True)

    def start(self, settings: Settings) -> None:
        """Starts the thread, which computes the first picture at once."""
        self._settings = settings
        self._tick = True
        self._thread.start()

    def ask(self, settings: Settings, *, tick: bool = False) -> None:
        """Requests a picture with these settings; ``tick``: of a new snapshot, not the last one."""
        with self._changed:
            self._settings = settings
            self._tick |= tick
            self._changed.notify_all()

    def run_job(self, job: Callable[[], None]) -> None:
        """Runs a job in the thread, which alone may use the pictures, namers and filters."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def _repeat(self) -> None:
        with self._changed:
            self._done = None
            self._changed.notify_all()

    def set_frozen(self, frozen: bool) -> None:
        """Stops or resumes taking snapshots periodically. Tracing continues."""
        with self._changed:
            self._frozen = frozen
            self._changed.notify_all()

    def stop_snapshots(self) -> None:
        """Stops taking snapshots, except to get content that the last one lacks."""
        self._final = True
        self.set_frozen(True)

    def shown(self) -> None:
        with self._changed:
            self._in_flight = False
            self._changed.notify_all()

    @property
    def is_settled(self) -> bool:
        with self._changed:
            asked = self._jobs or self._tick or self._settings != self._done
            return not asked and not self._in_flight and not self._busy

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            self._work_until_closed()
        except BaseException as failure:  # noqa: BLE001 - shown by the thread that draws
            if not self._closed:
                self._fail(failure)

    def _work_until_closed(self) -> None:
        trace: TraceSnapshot | None = None
        taken = TOTALS_ONLY
        next_s = time.monotonic()
        activity: list[tuple[int, int | None]] | None = None
        while True:
            with self._changed:
                self._busy = False
                while not self._closed and not self._jobs and not self._is_due(next_s):
                    self._changed.wait(self._wait_s(next_s))
                if self._closed:
                    return
                self._busy = True
                jobs, self._jobs = self._jobs, []
            for job in jobs:
                job()
            with self._changed:
                if jobs:
                    # Draw the job's changes as soon as possible.
                    self._done = None
                if not self._is_due(next_s):
                    continue
                settings, tick, self._tick = self._settings, self._tick, False
                assert settings is not None
            now_s, began_cpu_s = time.monotonic(), time.thread_time()
            left_s = self._left_s(next_s)
            wanted = settings.view.wanted
            stands = self._frozen and not self._final
            lacks = not taken.covers(wanted) and not stands
            is_time = left_s is not None and left_s <= 0
            if trace is None or tick or lacks or (is_time and not self._frozen):
                trace, taken = self.pictures.take_snapshot(settings), wanted
            try:
                picture = self.pictures.make(trace, settings, partial(self._check, settings.view))
            except NotWantedError:
                self._repeat()
                continue
            finally:
                # Missed ticks are skipped, and many blocks are not looked at all the time.
                if is_time:
                    before = activity
                    activity = [(one.events, one.rss_bytes) for one in trace.processes]
                    intervals = _IDLE_PAUSE if activity == before else 1
                    pause_s = min(_PAUSE * (time.thread_time() - began_cpu_s), _LONGEST_PAUSE_S)
                    next_s = now_s + max(intervals * (self.interval_s or 0.0), pause_s)
            self._look_s = 2 * self._look_s if self._naming else _FIRST_LOOK_S
            self._naming, self._made_s = picture.is_naming, time.monotonic()
            with self._changed:
                # The rest comes with the next picture, as soon as this one is drawn.
                self._done = None if picture.is_partial else settings
                self._in_flight = True
            self._publish(picture)

    def _check(self, view: View[Any]) -> None:
        """Raises NotWantedError if the user has switched to another view, which should not wait."""
        with self._changed:
            if self._settings is None or self._settings.view is not view:
                raise NotWantedError

    def _left_s(self, next_s: float) -> float | None:
        """Returns the seconds until the next snapshot; None: no periodic snapshot is due."""
        if self.interval_s is None or (self._frozen and not self._naming):
            return None
        # While the last picture waits to be drawn, only ``shown`` can wake the thread.
        return None if self._in_flight else max(0.0, next_s - time.monotonic())

    def _wait_s(self, next_s: float) -> float | None:
        """Returns the seconds until the next snapshot or lookup of names; None: neither is due."""
        left_s = self._left_s(next_s)
        if left_s is None or not self._naming:
            return left_s
        return min(left_s, max(0.0, self._made_s + self._look_s - time.monotonic()))

    def _is_due(self, next_s: float) -> bool:
        if self._in_flight:
            return False
        return self._tick or self._settings != self._done or self._wait_s(next_s) == 0.0
