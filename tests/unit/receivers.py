"""Servers that profiles are pushed to."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness import PATIENCE_S


class Receiver(http.server.ThreadingHTTPServer):
    """Checks each request, keeps what it said, and answers what it is told to."""

    daemon_threads = True

    def __init__(self, handler: type[Handler], scheme: str = "http") -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.scheme = scheme
        self.answers: list[tuple[int, bytes]] = []
        """Status and content; the usual one is 200 and nothing."""
        self.got: list[Any] = []
        self.wrong: list[str] = []
        self.came = threading.Condition()
        self.requests = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def wait_for(self, requests: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: self.requests >= requests, PATIENCE_S)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request. ``checked`` is what a protocol has to say about it."""

    server: Receiver

    def checked(self, body: bytes) -> Any:
        raise NotImplementedError

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = self.server.answers.pop(0) if self.server.answers else (200, b"")
        try:
            got = self.checked(body)
            if status == 200:
                self.server.got.append(got)
        except Exception as error:  # noqa: BLE001 - told to the test
            self.server.wrong.append(repr(error))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        with self.server.came:
            self.server.requests += 1
            self.server.came.notify_all()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(receiver: Receiver) -> Iterator[Receiver]:
    """The receiver is there; nothing that it is sent may be wrong."""
    with receiver as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        assert server.wrong == []
