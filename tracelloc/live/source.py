"""Profiles of a trace, for threads other than the one that reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.snapshots.trace import TraceSnapshot
from tracelloc.views.combined import trace_profiles
from tracelloc.views.namers import Namers
from tracelloc.views.profile import Profile

_PATIENCE_S: Final = 5.0
"""How long names are waited for; scrapers give up after ten seconds."""


class ProfileSource:
    """Makes the profiles of one snapshot at a time, and of each snapshot once."""

    def __init__(self, take: Callable[[], TraceSnapshot], namers: Namers) -> None:
        """``take`` may be called from any thread; ``namers`` are used by nobody else."""
        self._take = take
        self._namers = namers
        self._lock = threading.Lock()
        self._made: tuple[TraceSnapshot | None, Sequence[Profile]] = None, ()

    def profiles(self) -> Sequence[Profile]:
        """Of each process, as it was a moment ago. Raises what the trace died of."""
        with self._lock:
            trace = self._take()
            if self._made[0] is not trace:
                profiles = trace_profiles(trace, self._namers, freed=True, patience_s=_PATIENCE_S)
                self._made = trace, profiles
            return self._made[1]
