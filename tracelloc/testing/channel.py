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
        self._one = bytearray(1)
        self._send, self._receive = self._socket.send, self._socket.recv_into

    def begin(self) -> None:
        """Has figures begin here."""
        self._send(b"begin\n")
        self._receive(self._one)

    def end(self, **wanted: Any) -> dict[str, Any]:
        """Returns the figures since ``begin`` (``TestRun``)."""
        self._socket.sendall(json.dumps(wanted).encode() + b"\n")
        answer = bytearray()
        while not answer.endswith(b"\n"):
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise EOFError("tracelloc has ended")
            answer += piece
        found: dict[str, Any] = json.loads(answer)
        return found
