"""Snapshots shared by all front ends: concurrent requests get the same one."""

import threading
import time
from dataclasses import replace
from typing import Final

from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.session.session import Session
from tracelloc.show.alerts.suppressions import Suppressions
from tracelloc.show.presentation.naming import Namers
from tracelloc.snapshots.snapshot import TraceSnapshot

_FRESH_S: Final = 0.5  # Largest age of a snapshot that is reused for requests from the network


class SharedSnapshots:
    """Takes snapshots for all front ends. Thread safe: one at a time, other threads wait."""

    def __init__(
        self, session: Session, wanted: SnapshotRequest, namers: Namers, suppressions: Suppressions
    ) -> None:
        """``wanted``: the default content of snapshots. Nobody else uses ``namers``."""
        self._session = session
        self._wanted = wanted
        self._namers = namers
        self._suppressions = suppressions
        self._lock = threading.Lock()
        self._recent: tuple[float, TraceSnapshot] | None = None

    def take_snapshot(
        self, patience_s: float, wanted: SnapshotRequest | None = None
    ) -> TraceSnapshot:
        """Takes a snapshot of the trace, without suppressed suspects.

        Waits at most ``patience_s`` for the names that suppressions need. ``wanted``: the
        content of this snapshot. Raises the error that ended the trace.
        """
        with self._lock:
            return self._take(patience_s, wanted)

    def recent(self) -> TraceSnapshot:
        """Returns the last snapshot of this method if it is recent, else a new one."""
        with self._lock:
            now_s = time.monotonic()
            if self._recent is None or now_s - self._recent[0] >= _FRESH_S:
                self._recent = now_s, self._take(0.0, None)
            return self._recent[1]

    def expire(self) -> None:
        """Drops the snapshot that ``recent`` would return, after tracing has stopped."""
        with self._lock:
            self._recent = None

    def _take(self, patience_s: float, wanted: SnapshotRequest | None) -> TraceSnapshot:
        trace = self._session.snapshot(self._wanted if wanted is None else wanted)
        self._namers.patience_s = patience_s
        namers = map(self._namers.namer_of, [one.target for one in trace.processes])
        pairs = zip(trace.processes, namers, strict=True)
        kept = (self._suppressions.apply(one, namer, namer.patience_s) for one, namer in pairs)
        return replace(trace, processes=tuple(kept))
