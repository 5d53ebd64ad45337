"""Profiles over HTTP: for ``go tool pprof``, for scrapers, and for a browser.

``/debug/pprof/heap`` answers like Go's net/http/pprof; with ``?seconds=N`` it returns the
changes within N seconds. ``/metrics`` is OpenMetrics 1.0.0
(https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md), and ``/`` is the
flame graph. If no process is traced, there are metrics only.
"""

import http.server
import json
import math
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from tracelloc import __version__
from tracelloc.errors import TracellocError
from tracelloc.model.process import Space
from tracelloc.show.export import flamegraph, pprof
from tracelloc.show.export.flamegraph import page_data
from tracelloc.show.export.listings import fold
from tracelloc.show.presentation.combined import change_since, joined_profile
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.show.publish.address import ListenAddress, is_authorized, is_loopback
from tracelloc.text import printable

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def family_lines(name: str, kind: str, unit: str, text: str) -> Iterator[str]:
    """Yields a metric's description. ``kind``: gauge or counter; ``unit`` may be empty."""
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}."


def label_text(labels: Mapping[str, str]) -> str:
    """Formats the labels of a series, in braces."""
    pairs = (f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def metrics_text(lines: Iterable[str]) -> str:
    """Returns the lines as a complete OpenMetrics text."""
    return "".join(f"{line}\n" for line in lines) + "# EOF\n"


def _escaped(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Stacks exported as series: a metrics database keeps each distinct series forever.
TOP_STACKS: Final = 10
# Characters of a stack's label; longer labels keep their innermost end.
_LONGEST_STACK: Final = 1000

_GAUGES: Final = (
    ("live_bytes", "bytes", "live_bytes", "Live bytes"),
    ("live_allocations", "", "live_allocations", "Live blocks"),
    ("live_stacks", "", "live_stacks", "Call stacks with live blocks"),
    ("rss_bytes", "bytes", "rss_bytes", "Resident memory of the process"),
    ("growth_bytes_per_min", "", "growth_bytes_per_min", "Growth over the last minute"),
    ("events_per_second", "", "events_per_s", "Allocations and frees per second"),
    ("probe_share_ratio", "ratio", "probe_share", "Probes' share of the target's CPU time"),
    ("elapsed_seconds", "seconds", "elapsed_s", "Time since tracing began"),
)
_COUNTERS: Final = (
    ("allocated_bytes", "bytes", "allocated_bytes", "Bytes allocated since tracing began"),
    ("allocations", "", "allocations", "Blocks allocated since tracing began"),
    ("freed_bytes", "bytes", "freed_bytes", "Bytes freed of those"),
    ("frees", "", "frees", "Blocks freed of those"),
    ("unmatched_frees", "", "unmatched_frees", "Frees of blocks from before tracing"),
)


def metrics(profiles: Sequence[Profile]) -> str:
    """Formats the OpenMetrics text of one process or several."""
    return metrics_text(_lines(profiles))


def _lines(profiles: Sequence[Profile]) -> Iterator[str]:
    for kind, figures in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, unit, key, text in figures:
            known = [profile for profile in profiles if profile.facts.get(key) is not None]
            if known:
                yield from family_lines(f"tracelloc_{name}", kind, unit, text)
            total = "_total" if kind == "counter" else ""
            for profile in known:
                labels = label_text(_target(profile))
                yield f"tracelloc_{name}{total}{labels} {profile.facts[key]}"
    yield from family_lines("tracelloc_lost", "counter", "", "Events that were lost, by cause")
    for profile in profiles:
        lost: dict[str, Any] = profile.facts.get("lost", {})
        for cause, count in lost.items():
            yield f"tracelloc_lost_total{label_text({**_target(profile), 'cause': cause})} {count}"
    text = f"Live bytes of the {TOP_STACKS} stacks with most of them"
    yield from family_lines("tracelloc_stack_bytes", "gauge", "bytes", text)
    for profile in profiles:
        yield from _stacks(profile)


def _target(profile: Profile) -> dict[str, str]:
    where = {} if profile.space == Space.HOST.value else {"space": profile.space}
    return {"pid": str(profile.target.pid), "command": profile.target.command} | where


def _stacks(profile: Profile) -> Iterator[str]:
    for sample in profile.samples[:TOP_STACKS]:
        held = sample.weight(Metric.BYTES)
        if held > 0:
            stack = fold(sample.stack, sample.stat.index)[-_LONGEST_STACK:]
            labels = {"stack_id": str(sample.stat.index), "stack": stack}
            yield f"tracelloc_stack_bytes{label_text(_target(profile) | labels)} {held}"


REFRESH_S: Final = 5.0  # How often a page in a browser requests new figures
_LONGEST_DELTA_S: Final = 300
_MOST_CONNECTIONS: Final = 16
_QUEUE_LENGTH: Final = 64
_SOCKET_PATIENCE_S: Final = 30.0  # Time limit for a client to read a response
_REQUEST_PATIENCE_S: Final = 5.0  # Time limit for a client to send a whole request
_MOST_DELTAS: Final = 4  # Most clients that wait for changes at a time
_POLL_S: Final = 0.1  # How often the server checks whether to stop
_PPROF_PATHS: Final = {"/debug/pprof/heap": Metric.BYTES, "/debug/pprof/allocs": Metric.ALLOCATED}
_INDEX: Final = "heap: live blocks\nallocs: all allocations since tracing began\n"


def listen_on(address: ListenAddress) -> socket.socket:
    """Binds an address, without answering requests yet. Raises TracellocError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
        # Only listen(2) tells whether another process already listens there.
        listener.listen(_QUEUE_LENGTH)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TracellocError(f"cannot listen on {address}: {reason}") from error
    return listener


class Endpoint(http.server.ThreadingHTTPServer):
    """An HTTP server in its own threads, which runs from its creation to ``close``."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, take_profiles: Callable[[], Sequence[Profile]],
        token: str | None = None, take_metrics: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        """``take_profiles``: from any thread. ``take_metrics``: all metrics, without profiles."""
        self.take_profiles = take_profiles
        self.take_metrics = take_metrics or (lambda: metrics(take_profiles()))
        self.has_profiles = take_metrics is None
        self.token = token
        self.closing = threading.Event()
        self.deltas = threading.BoundedSemaphore(_MOST_DELTAS)
        # Connections, and since when (CLOCK_MONOTONIC) the server has waited for each; oldest
        # first, connections that are being answered last.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        address = listener.getsockname()
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # server_bind would set these, but it looks up the host's name.
        self.server_address = address
        self.server_name, self.server_port = str(address[0]), address[1]
        # Whether only this machine can reach it
        self.is_loopback = is_loopback(self.server_name.partition("%")[0])
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}/"

    def close(self) -> None:
        """Stops listening; responses in progress may be cut off."""
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread per connection; at the limit, the slowest connection is closed."""
        with self._lock:
            if len(self._open) >= _MOST_CONNECTIONS:
                slowest = min(self._open, key=self._open.__getitem__)
                if self._open[slowest] == math.inf:
                    self.shutdown_request(request)
                    return
                # The connection's thread finds it closed.
                with suppress(OSError):
                    slowest.shutdown(socket.SHUT_RDWR)
                del self._open[slowest]
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Closes connections whose clients take too long to send a request."""
        now_s = time.monotonic()
        with self._lock:
            for connection, since_s in list(self._open.items()):
                if now_s - since_s > _REQUEST_PATIENCE_S:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def wait_for_client_since(self, request: socket.socket, since_s: float) -> None:
        """Sets when the wait for a connection's client began; infinity: the client waits."""
        with self._lock:
            if request in self._open:
                self._open[request] = since_s

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores an error of a connection, as its client has disconnected."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Endpoint
    timeout = _SOCKET_PATIENCE_S
    server_version = f"tracelloc/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.wait_for_client_since(self.connection, math.inf)
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except TracellocError as error:
            self._refuse(503, str(error))
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the others
            self._refuse(500, f"{type(error).__name__}: {error}")

    do_HEAD = do_GET  # noqa: N815 - the name is given

    def _answer(self) -> None:
        if not self._is_meant():
            self._refuse(403, "this server answers only to its own address")
            return
        token = self.server.token
        if token is not None and not is_authorized(self.headers.get("Authorization", ""), token):
            self._refuse(401, "a token is needed, as Bearer or as the password of any user")
            return
        parts = urllib.parse.urlsplit(self.path)
        if parts.path == "/metrics":
            self._send(CONTENT_TYPE, [self.server.take_metrics().encode()])
        elif not self.server.has_profiles:
            self._refuse(404, "the only path is /metrics")
        elif parts.path in _PPROF_PATHS:
            self._pprof(_PPROF_PATHS[parts.path], urllib.parse.parse_qs(parts.query))
        elif parts.path == "/debug/pprof/":
            self._send("text/plain; charset=utf-8", [_INDEX.encode()])
        elif parts.path == "/flamegraph.json":
            data = page_data(joined_profile(self.server.take_profiles()), Metric.BYTES, REFRESH_S)
            self._send("application/json", [flamegraph.embedded(data).encode()])
        elif parts.path == "/":
            whole = joined_profile(self.server.take_profiles())
            page = flamegraph.write_html(whole, Metric.BYTES, REFRESH_S)
            self._send("text/html; charset=utf-8", page)
        else:
            self._refuse(404, "known paths: /, /metrics, /debug/pprof/heap and /debug/pprof/allocs")

    def _is_meant(self) -> bool:
        """Whether the Host header names this machine, against DNS rebinding.

        It is only checked on loopback, whose protection rebinding would circumvent.
        """
        if not self.server.is_loopback:
            return True
        host = urllib.parse.urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname or ""
        return is_loopback(host)

    def _pprof(self, metric: Metric, query: dict[str, list[str]]) -> None:
        text = query.get("seconds", ["0"])[-1]
        if not (text.isascii() and text.isdigit() and len(text) < 9):
            self._refuse(400, "seconds must be a whole number")
            return
        seconds = int(text)
        if seconds > _LONGEST_DELTA_S:
            self._refuse(400, f"seconds must be at most {_LONGEST_DELTA_S}")
            return
        profiles = self.server.take_profiles()
        if seconds:
            before = {profile.target.number: profile for profile in profiles}
            if not self.server.deltas.acquire(blocking=False):
                self._refuse(503, f"{_MOST_DELTAS} others are waiting for changes")
                return
            try:
                self.server.closing.wait(seconds)
            finally:
                self.server.deltas.release()
            taken = self.server.take_profiles()
            profiles = [change_since(before.get(p.target.number), p) for p in taken]
        name = "allocs" if metric is Metric.ALLOCATED else "heap"
        content = pprof.write(joined_profile(profiles), metric)
        self._send("application/octet-stream", content, f'attachment; filename="{name}"')

    def _send(self, kind: str, pieces: Iterable[bytes], disposition: str | None = None) -> None:
        more = {"Cache-Control": "no-store"}
        if disposition is not None:
            more["Content-Disposition"] = disposition
        self._respond(200, kind, b"".join(pieces), more)

    def _refuse(self, status: int, reason: str) -> None:
        content = f"{json.dumps(reason)[1:-1]}\n".encode()
        more = {"WWW-Authenticate": 'Basic realm="tracelloc"'} if status == 401 else {}
        self._respond(status, "text/plain; charset=utf-8", content, more)

    def _respond(self, status: int, kind: str, content: bytes, more: dict[str, str]) -> None:
        # Clients have longer to read a response than to send a request.
        since_s = time.monotonic() + _SOCKET_PATIENCE_S - _REQUEST_PATIENCE_S
        self.server.wait_for_client_since(self.connection, since_s)
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(content))}
        for header in (headers | {"X-Content-Type-Options": "nosniff"} | more).items():
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is given
        """Logs nothing, as standard error belongs to the trace."""
