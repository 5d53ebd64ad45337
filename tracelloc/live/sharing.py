"""The endpoint and the push of one trace, started and ended together."""

from __future__ import annotations

from collections.abc import Callable

from tracelloc.live.address import ListenAddress, PushConfig
from tracelloc.live.endpoint import Endpoint
from tracelloc.live.push import Pusher
from tracelloc.live.source import ProfileSource
from tracelloc.snapshots.snapshot import Snapshot, Target
from tracelloc.views.naming import Namer


class Sharing:
    """Whatever was asked for of the two."""

    def __init__(
        self,
        *,
        listen: ListenAddress | None,
        push: PushConfig | None,
        target: Target,
        take: Callable[[], Snapshot],
        namer: Namer,
        say: Callable[[str], None],
    ) -> None:
        """Takes the address, but answers nobody yet. Raises TracellocError."""
        source = ProfileSource(take, namer)
        self._say = say
        self.endpoint = None if listen is None else Endpoint(listen, source.profile)
        self._pusher = None if push is None else Pusher(push, target, source.profile, say)
        self._push = push

    def start(self) -> None:
        """From when snapshots can be taken."""
        if self.endpoint is not None:
            self.endpoint.start()
            public = ""
            if self.endpoint.is_public:
                public = "; whoever can reach it can read it"
            self._say(f"listening on {self.endpoint.url}{public}")
        if self._pusher is not None and self._push is not None:
            self._pusher.start()
            self._say(f"pushing to {self._push.url}")

    def close(self) -> None:
        """Before snapshots can no longer be taken. May be called twice."""
        if self._pusher is not None:
            self._pusher.close()
            self._pusher = None
        if self.endpoint is not None:
            self.endpoint.close()
            self.endpoint = None
