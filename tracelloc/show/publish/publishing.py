"""Pushes profiles to a server at intervals; runs the endpoint and the push of one trace.

Pyroscope: ``POST /ingest`` of https://grafana.com/docs/pyroscope/latest/reference-server-api/,
format pprof: query parameters have the profile's application and time span; the body is a form with
the profile and how its sample types add up over time. OTLP: ``POST /v1development/profiles`` of
https://opentelemetry.io/docs/specs/otlp/#otlphttp, gzipped binary protobuf.
"""

import gzip
import http.client
import json
import os
import secrets
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tracelloc import __version__
from tracelloc.model.process import Target
from tracelloc.show.export import otlp, pprof
from tracelloc.show.export.otlp import new_message, service_attributes
from tracelloc.show.presentation.combined import is_of_mappings, joined_profile, trace_profiles
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.show.publish.address import ListenAddress, PushConfig, is_open_to_readers
from tracelloc.show.publish.endpoint import Endpoint, listen_on
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.text import plural, printable

_CONFIG: Final = "sample_type_config"
_TYPES: Final[dict[str, dict[str, object]]] = {
    "inuse_objects": {"units": "objects", "aggregation": "average"},
    "inuse_space": {"units": "bytes", "aggregation": "average"},
    "alloc_objects": {"units": "objects", "aggregation": "sum"},
    "alloc_space": {"units": "bytes", "aggregation": "sum"},
}
_UNSAFE_IN_NAMES: Final = str.maketrans(dict.fromkeys('{},="\\/ \t\n', "_"))


# URL, headers and body of a request that sends profiles.
Parcel = tuple[str, dict[str, str], bytes]


class Pyroscope:
    """The protocol of servers that are compatible with Pyroscope."""

    def __init__(self, config: PushConfig, target: Target) -> None:
        """``target``: the first process, which names the trace."""
        self._config = config
        self._target = target

    def pack(self, profiles: Sequence[Profile], from_s: float, until_s: float) -> Parcel:
        """Encodes profiles as a form with a file. Times are in seconds since 1970."""
        whole = joined_profile(profiles)
        body, boundary = _form(b"".join(pprof.write(whole, Metric.BYTES)), whole.type_prefix)
        span = {"from": int(from_s), "until": max(1, round(until_s))}
        query = {"name": self._name(), **span, "format": "pprof", "spyName": "tracelloc"}
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return f"{self._config.url}?{urllib.parse.urlencode(query)}", headers, body

    def is_retryable(self, status: int) -> bool:
        """Whether a request is sent again after this status: a server error or rate limit."""
        return status in (408, 429) or status >= 500

    def refused(self, _answer: bytes) -> tuple[int, str]:
        """Returns (0, ""), as the server accepts or refuses whole requests."""
        return 0, ""

    def _name(self) -> str:
        target = self._target
        labels = {"hostname": socket.gethostname(), "pid": str(target.pid)}
        owner = {
            "namespace": target.namespace,
            "pod": target.pod or target.pod_uid,
            "container": target.container or target.container_id[:12],
        }
        labels |= {key: value for key, value in owner.items() if value}
        labels.update(self._config.labels)
        pairs = ",".join(f"{key}={_plain(value)}" for key, value in labels.items())
        return f"{_plain(self._config.name or self._target.command or 'unknown')}{{{pairs}}}"


def _plain(name: str) -> str:
    return printable(name).translate(_UNSAFE_IN_NAMES)


def _form(content: bytes, prefix: str) -> tuple[bytes, str]:
    """Returns a multipart/form-data body (RFC 7578) and its boundary."""
    boundary = secrets.token_hex(16)
    types = {f"{prefix}{name}": how for name, how in _TYPES.items()}
    parts = (
        ("profile", "profile.pb.gz", "application/octet-stream", content),
        (_CONFIG, f"{_CONFIG}.json", "application/json", json.dumps(types).encode()),
    )
    body = b""
    for name, file, kind, part in parts:
        head = (
            f"--{boundary}\r\nContent-Disposition: form-data; "
            f'name="{name}"; filename="{file}"\r\nContent-Type: {kind}\r\n\r\n'
        )
        body += head.encode() + part + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), boundary


class Otlp:
    """The protocol of OpenTelemetry collectors and other receivers of OTLP profiles."""

    def __init__(self, config: PushConfig) -> None:
        self._config = config
        self._attributes = service_attributes(os.environ) | dict(config.labels)
        if config.name is not None:
            self._attributes["service.name"] = config.name

    def pack(self, profiles: Sequence[Profile], from_s: float, until_s: float) -> Parcel:
        sent = new_message("Request")
        elapsed_ns = max(0, round((until_s - from_s) * 1e9))
        timed = [replace(each, time_s=until_s, elapsed_ns=elapsed_ns) for each in profiles]
        # The server can recognize a request repeated after a lost response.
        otlp.fill(sent, timed, attributes=self._attributes, new_id=lambda: secrets.token_bytes(16))
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        content = gzip.compress(sent.SerializeToString(), 6, mtime=0)
        return self._config.url, headers | dict(self._config.headers), content

    def is_retryable(self, status: int) -> bool:
        return status in (429, 502, 503, 504)

    def refused(self, answer: bytes) -> tuple[int, str]:
        """Returns (number of refused profiles, message) of the server's answer."""
        message = new_message("Response")
        try:
            message.ParseFromString(answer)
        except Exception:  # noqa: BLE001 - DecodeError of a library that need not be there
            return 0, "its answer cannot be read"
        partial = message.partial_success
        return max(0, partial.rejected_profiles), partial.error_message


# Profiles kept while the server doesn't answer; the oldest is dropped first.
MOST_WAITING: Final = 16
_PATIENCE_S: Final = 10.0
_LAST_PATIENCE_S: Final = 3.0  # Time limit of each last attempt after tracing has ended
_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any) -> None:
        """Refuses redirects: a POST would be repeated as a GET without its body."""


class Pusher:
    """Takes profiles and sends them, in a thread from ``start`` to ``close``."""

    def __init__(
        self, config: PushConfig, target: Target, take: Callable[[], Sequence[Profile]],
        say: Callable[[str], None], first_delay_s: float = _FIRST_DELAY_S,
    ) -> None:  # fmt: skip
        """``take`` returns profiles; ``say``, from any thread, tells when the server fails."""
        self._config = config
        self._protocol = Otlp(config) if config.is_otlp else Pyroscope(config, target)
        self._take = take
        self._say = say
        self._first_delay_s = first_delay_s
        self._waiting: deque[Parcel] = deque()
        # The table's number (see `Profile`) by process, and what its stacks had allocated by the
        # last profile: (bytes, blocks) by stack and whether they are mappings.
        self._allocated: dict[int, tuple[int, dict[tuple[int, bool], tuple[int, int]]]] = {}
        self._since_s = time.time()
        self._failing = False
        self._remark = ""  # The server's remark on the last profile that it accepted
        self.dropped = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)
        self._opener = urllib.request.build_opener(_NoRedirect)

    def start(self) -> None:
        """Starts the thread; it sends the first profile after one interval."""
        self._since_s = time.time()
        self._thread.start()

    def close(self) -> None:
        """Sends the remaining profiles once more, and ends the thread."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        next_take = time.monotonic() + self._config.interval_s
        delay_s, next_try = self._first_delay_s, 0.0
        while not self._ending.wait(
            max(0.0, (min(next_take, next_try) if self._waiting else next_take) - time.monotonic())
        ):
            if time.monotonic() >= next_take:
                next_take += self._config.interval_s * (
                    1 + max(0.0, time.monotonic() - next_take) // self._config.interval_s
                )
                self._pack()
            if not self._waiting or time.monotonic() < next_try:
                continue
            if self._send_all(_PATIENCE_S):
                delay_s, next_try = self._first_delay_s, 0.0
            else:
                next_try = time.monotonic() + delay_s
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
        self._pack()
        self._send_all(_LAST_PATIENCE_S)
        self.dropped += len(self._waiting)
        if self.dropped:
            self._say(f"{plural(self.dropped, 'profile')} could not be pushed")

    def _pack(self) -> None:
        try:
            profiles = self._take()
            until_s = time.time()
            new = [self._with_new_allocations(profile) for profile in profiles]
            parcel = self._protocol.pack(new, self._since_s, until_s)
        except Exception as error:  # noqa: BLE001 - the next one may be taken
            self._fail(str(error) or type(error).__name__)
            self.dropped += 1
            return
        if len(self._waiting) == MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(parcel)
        self._since_s = until_s

    def _with_new_allocations(self, profile: Profile) -> Profile:
        """Returns the profile with only new allocations, as the server adds allocations up."""
        table, before = self._allocated.get(profile.target.number, (-1, {}))
        if table != profile.table_number:
            before = {}
            self._allocated[profile.target.number] = profile.table_number, before
        samples = []
        for sample in profile.samples:
            stat, key = sample.stat, (sample.stat.index, is_of_mappings(sample))
            size, count = before.get(key, (0, 0))
            before[key] = stat.allocated_bytes, stat.allocated_count
            # For mappings only the live bytes are known, which may have decreased.
            new_bytes = max(0, stat.allocated_bytes - size)
            new_count = max(0, stat.allocated_count - count)
            new = replace(stat, allocated_bytes=new_bytes, allocated_count=new_count)
            if new.live_count or new.allocated_count:
                samples.append(replace(sample, stat=new))
        return replace(profile, samples=samples)

    def _send_all(self, patience_s: float) -> bool:
        """Sends profiles, oldest first. Returns whether nothing has to be retried."""
        while self._waiting:
            trouble, again = self._send(self._waiting[0], patience_s)
            if trouble:
                self._fail(trouble)
                if again:
                    return False
                self.dropped += 1
            elif self._failing:
                self._failing = False
                self._say(f"{self._config.url} accepts profiles again")
            self._waiting.popleft()
        return True

    def _fail(self, trouble: str) -> None:
        if not self._failing:
            self._failing = True
            self._say(f"error: cannot push to {self._config.url}: {printable(trouble)}")

    def _send(self, parcel: Parcel, patience_s: float) -> tuple[str, bool]:
        """Returns (error, whether to retry); an empty error if the profile was sent."""
        url, headers, body = parcel
        headers["User-Agent"] = f"tracelloc/{__version__}"
        if self._config.authorization is not None:
            headers["Authorization"] = self._config.authorization
        request = urllib.request.Request(  # noqa: S310 - http and https only
            url, data=body, headers=headers, method="POST"
        )
        try:
            with self._opener.open(request, timeout=patience_s) as answer:
                self._note_refused(*self._protocol.refused(answer.read(1 << 16)))
        except urllib.error.HTTPError as error:
            with error:
                again = self._protocol.is_retryable(error.code)
                return f"it answered {error.code} {error.reason}", again
        except (OSError, http.client.HTTPException) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            return str(getattr(why, "strerror", None) or why or type(error).__name__), True
        return "", False

    def _note_refused(self, count: int, reason: str) -> None:
        """Reports a server's remark on accepted profiles, once until the remark changes."""
        self.dropped += count
        what = f"{plural(count, 'profile')} refused: " if count else ""
        remark = f"{what}{printable(reason)}" if reason or count else ""
        if remark and remark != self._remark:
            self._say(f"{self._config.url}: {remark}")
        self._remark = remark


_NAMES_PATIENCE_S: Final = 5.0  # How long to wait for names; scrapers give up after ten seconds


class Sharing:
    """The endpoint and the push of one trace, as far as requested."""

    def __init__(
        self, listen: ListenAddress | None, push: PushConfig | None, say: Callable[[str], None]
    ) -> None:
        """Binds the address to listen on, but answers no request yet. Raises TracellocError."""
        self._say = say
        self._push = push
        self._listener = None if listen is None else listen_on(listen)
        self._token = None if listen is None else listen.token
        self._endpoint: Endpoint | None = None
        self._pusher: Pusher | None = None
        self._lock = threading.Lock()  # For `_made`
        self._made: tuple[TraceSnapshot | None, Sequence[Profile]] = None, ()

    def start(self, target: Target, take: Callable[[], TraceSnapshot], namers: Namers) -> None:
        """Starts to answer requests and to push profiles. ``target``: the first process.

        ``take`` may be called from any thread; this object alone uses ``namers``.
        """
        profiles = partial(self._profiles, take, namers)
        if self._listener is not None:
            self._endpoint = Endpoint(self._listener, profiles, self._token)
            public = ""
            if not self._endpoint.is_loopback:
                public = "; anyone who can reach it can read it"
                if self._token:
                    public = "; its token can be read on the way: it is plain HTTP"
            self._say(f"listening on {self._endpoint.url}{public}")
        if self._push is not None:
            self._pusher = Pusher(self._push, target, profiles, self._say)
            self._pusher.start()
            url = self._push.url
            self._say(f"pushing to {url}")
            if is_open_to_readers(url):
                secret = " and the password" if self._push.authorization else ""
                self._say(f"warning: profiles{secret} can be read on the way to {url}: use https")

    def _profiles(self, take: Callable[[], TraceSnapshot], namers: Namers) -> Sequence[Profile]:
        """Returns the profiles of a snapshot, made once. Raises the error that ended the trace."""
        with self._lock:
            trace = take()
            if self._made[0] is not trace:
                made = trace_profiles(trace, namers, freed=True, patience_s=_NAMES_PATIENCE_S)
                self._made = trace, made
            return self._made[1]

    def close(self) -> None:
        """Stops endpoint and push, while snapshots can still be taken. May be called twice."""
        if self._pusher is not None:
            self._pusher.close()
            self._pusher = None
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
        elif self._listener is not None:
            self._listener.close()
