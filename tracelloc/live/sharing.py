"""The endpoint and the push of one trace, started and ended together, and their profiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.live.address import ListenAddress, PushConfig
from tracelloc.live.endpoint import Endpoint, listen_on
from tracelloc.live.push import Pusher
from tracelloc.snapshots.snapshot import Target, TraceSnapshot
from tracelloc.views.combined import trace_profiles
from tracelloc.views.naming import Namers
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


class Sharing:
    """Whatever was asked for of the two."""

    def __init__(
        self, listen: ListenAddress | None, push: PushConfig | None, say: Callable[[str], None]
    ) -> None:
        """Takes the address, but answers nobody yet. Raises TracellocError."""
        self._say = say
        self._push = push
        self._listener = None if listen is None else listen_on(listen)
        self._endpoint: Endpoint | None = None
        self._pusher: Pusher | None = None

    def start(self, target: Target, take: Callable[[], TraceSnapshot], namers: Namers) -> None:
        """Answers and pushes from here on. See ``ProfileSource``; ``target`` names the trace."""
        source = ProfileSource(take, namers)
        if self._listener is not None:
            self._endpoint = Endpoint(self._listener, source.profiles)
            public = "; whoever can reach it can read it" if self._endpoint.is_public else ""
            self._say(f"listening on {self._endpoint.url}{public}")
        if self._push is not None:
            self._pusher = Pusher(self._push, target, source.profiles, self._say)
            self._pusher.start()
            self._say(f"pushing to {self._push.url}")

    def close(self) -> None:
        """Before snapshots can no longer be taken. May be called twice."""
        if self._pusher is not None:
            self._pusher.close()
            self._pusher = None
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
        elif self._listener is not None:
            self._listener.close()
