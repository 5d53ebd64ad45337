"""Profiles of a running session, for threads other than the one that reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tracelloc.report.profile import Profile, profile_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.views.naming import Namer

FRESH_S: Final = 0.5
"""A profile this young is as good as a new one: many may ask at once."""
_PATIENCE_S: Final = 5.0
"""How long names are waited for; scrapers give up after ten seconds."""


class ProfileSource:
    """Makes one profile at a time."""

    def __init__(self, take: Callable[[], Snapshot], namer: Namer) -> None:
        """``take`` may be called from any thread; ``namer`` is used by nobody else."""
        self._take = take
        self._namer = namer
        self._lock = threading.Lock()
        self._latest: tuple[float, Profile] | None = None

    def profile(self) -> Profile:
        """As it is now, at most FRESH_S ago. Raises what the session died of."""
        with self._lock:
            now = time.monotonic()
            if self._latest is not None and now - self._latest[0] < FRESH_S:
                return self._latest[1]
            profile = profile_of(self._take(), self._namer, patience_s=_PATIENCE_S)
            self._latest = now, profile
            return profile
