"""The thread that takes snapshots on time and makes the pictures that the screen shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tracelloc.model.wanted import NOTHING_ELSE
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.ui.picture import Picture, Pictures
from tracelloc.ui.view import Journal, Settings, Source

_FIRST_LOOK_S: Final = 0.1
"""Until names that were not there yet are looked for; each time twice as long."""


class Refresher:
    """Takes snapshots on time and makes pictures of them, and of the last one on demand.

    ``publish`` is called from the thread with each picture; the next one is not begun
    before ``shown`` says that the last one is on the screen. Whatever goes wrong is handed
    to ``fail`` instead, and ends the thread.
    """

    def __init__(
        self,
        source: Source,
        journal: Journal,
        publish: Callable[[Picture], None],
        fail: Callable[[BaseException], None],
        interval_s: float | None,
    ) -> None:
        """``interval_s`` None: only on demand, for tests."""
        self.pictures = Pictures(source, journal, asked=self._repeat)
        """For its thread, and what ``do`` has done there."""
        self._publish = publish
        self._fail = fail
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._settings: Settings | None = None
        self._tick = False
        self._frozen = False
        self._final = False
        self._closed = False
        self._in_flight = False
        self._busy = False
        """Working, with nothing to show yet."""
        self._naming = False
        """The last picture lacks names that may come."""
        self._look_s = _FIRST_LOOK_S
        """Until these are looked for, from the last picture on."""
        self._made_s = 0.0
        """When that was made."""
        self._done: Settings | None = None
        """The settings of the last picture; None if the picture is out of date."""
        self._jobs: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._work, name="refresher", daemon=True)

    def start(self, settings: Settings) -> None:
        """Makes the first picture at once."""
        self._settings = settings
        self._tick = True
        self._thread.start()

    def ask(self, settings: Settings, *, tick: bool = False) -> None:
        """Wants a picture of these settings soon: of the last snapshot, or a new one."""
        with self._changed:
            self._settings = settings
            self._tick |= tick
            self._changed.notify_all()

    def do(self, job: Callable[[], None]) -> None:
        """Has something done by the thread, for what only it may touch."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def _repeat(self) -> None:
        """Makes the last picture once more: it lacks names."""
        with self._changed:
            self._done = None
            self._changed.notify_all()

    def freeze(self, frozen: bool) -> None:
        """Whether new snapshots are taken. Capture goes on."""
        with self._changed:
            self._frozen = frozen
            self._changed.notify_all()

    def stand(self) -> None:
        """Nothing changes any more: snapshots are taken for what the last one lacks only."""
        self._final = True
        self.freeze(True)

    def shown(self) -> None:
        """The last picture is on the screen."""
        with self._changed:
            self._in_flight = False
            self._changed.notify_all()

    @property
    def is_settled(self) -> bool:
        """Whether all that was asked for is on the screen."""
        with self._changed:
            asked = self._jobs or self._tick or self._settings != self._done
            return not asked and not self._in_flight and not self._busy

    def close(self) -> None:
        """Ends the thread."""
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
        taken = NOTHING_ELSE
        next_s = time.monotonic()
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
                    # A job's changes are drawn as soon as possible.
                    self._done = None
                if not self._is_due(next_s):
                    continue
                settings, tick, self._tick = self._settings, self._tick, False
                assert settings is not None
            now_s = time.monotonic()
            left_s = self._left_s(next_s)
            wanted = settings.view.wanted
            stands = self._frozen and not self._final
            lacks = taken | wanted != taken and not stands
            is_time = left_s is not None and left_s <= 0
            if trace is None or tick or lacks or (is_time and not self._frozen):
                trace, taken = self.pictures.take(settings), wanted
            # Ticks that were missed are not made up for.
            if is_time:
                next_s = now_s + (self._interval_s or 0.0)
            picture = self.pictures.make(trace, settings)
            self._look_s = 2 * self._look_s if self._naming else _FIRST_LOOK_S
            self._naming, self._made_s = picture.is_naming, time.monotonic()
            with self._changed:
                # Names that are waited for come with the next one, as soon as this is drawn.
                self._done = None if picture.names_pending else settings
                self._in_flight = True
            self._publish(picture)

    def _left_s(self, next_s: float) -> float | None:
        """Until the next snapshot; None: none is to come by itself."""
        if self._interval_s is None or (self._frozen and not self._naming):
            return None
        # While the last picture waits to be drawn, only that can be waited for.
        return None if self._in_flight else max(0.0, next_s - time.monotonic())

    def _wait_s(self, next_s: float) -> float | None:
        """Until the next snapshot, or the next look for names."""
        left_s = self._left_s(next_s)
        if left_s is None or not self._naming:
            return left_s
        return min(left_s, max(0.0, self._made_s + self._look_s - time.monotonic()))

    def _is_due(self, next_s: float) -> bool:
        if self._in_flight:
            return False
        return self._tick or self._settings != self._done or self._wait_s(next_s) == 0.0
