"""The connection of a process that runs tests to the tracelloc that has started it."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from tracelloc.testing import VARIABLE


class Channel:
    """Asks tracelloc, and waits for its answer: nothing is allocated meanwhile."""

    def __init__(self) -> None:
        """Takes over the socket, and removes what was added to the environment for this."""
        number, *added = os.environ.pop(VARIABLE).split()
        for name in added:
            os.environ.pop(name, None)
        self._socket = socket.socket(fileno=int(number))
        self._socket.set_inheritable(False)
        self._one, self._piece = bytearray(1), bytearray(1 << 16)
        self._send, self._receive = self._socket.send, self._socket.recv_into

    def begin(self) -> None:
        """Has figures begin here."""
        self._send(b"begin\n")
        self._receive(self._one)

    @staticmethod
    def request(**wanted: Any) -> bytes:
        """Returns what ``end`` is to ask for; made before the figures begin."""
        return json.dumps(wanted).encode() + b"\n"

    def end(self, request: bytes) -> dict[str, Any]:
        """Returns the figures since ``begin`` (``TestRun``)."""
        self._send(request)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            count = self._receive(self._piece)
            if not count:
                raise EOFError("tracelloc has ended")
            answer += self._piece[:count]
        found: dict[str, Any] = json.loads(answer)
        return found
