"""The endpoint and the push of one trace, started and ended together."""

from __future__ import annotations

from collections.abc import Callable

from tracelloc.live.address import ListenAddress, PushConfig
from tracelloc.live.endpoint import Endpoint, listen_on
from tracelloc.live.push import Pusher
from tracelloc.live.source import ProfileSource
from tracelloc.snapshots.snapshot import Target
from tracelloc.snapshots.trace import TraceSnapshot
from tracelloc.views.namers import Namers


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
