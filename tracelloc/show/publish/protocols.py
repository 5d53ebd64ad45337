"""The protocols by which servers take profiles: Pyroscope's HTTP API, and OTLP.

Pyroscope: ``POST /ingest`` of https://grafana.com/docs/pyroscope/latest/reference-server-api/,
format pprof: query parameters have the profile's application and time span; the body is a form with
the profile and how its sample types add up over time. OTLP: ``POST /v1development/profiles`` of
https://opentelemetry.io/docs/specs/otlp/#otlphttp, gzipped binary protobuf.
"""

import gzip
import json
import os
import secrets
import socket
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tracelloc.model.process import Target
from tracelloc.show.export import otlp, pprof
from tracelloc.show.export.otelnames import new_request, new_response, service_attributes
from tracelloc.show.presentation.combined import joined_profile
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.show.publish.address import PushConfig
from tracelloc.text import printable

_CONFIG: Final = "sample_type_config"
_TYPES: Final[dict[str, dict[str, object]]] = {
    "inuse_objects": {"units": "objects", "aggregation": "average"},
    "inuse_space": {"units": "bytes", "aggregation": "average"},
    "alloc_objects": {"units": "objects", "aggregation": "sum"},
    "alloc_space": {"units": "bytes", "aggregation": "sum"},
}
_UNSAFE_IN_NAMES: Final = str.maketrans(dict.fromkeys('{},="\\/ \t\n', "_"))


class Parcel(NamedTuple):
    """Profiles of a time span, encoded to be sent."""

    from_s: float
    until_s: float  # Beginning and end, in seconds since 1970
    content: bytes


class Pyroscope:
    """The protocol of servers that are compatible with Pyroscope."""

    def __init__(self, config: PushConfig, target: Target) -> None:
        """``target``: the first process, which names the trace."""
        self._config = config
        self._target = target
        self._prefix = ""

    def pack(self, profiles: Sequence[Profile], from_s: float, until_s: float) -> Parcel:
        """Encodes a pprof file of all processes, with allocations since ``from_s``."""
        whole = joined_profile(profiles)
        self._prefix = whole.type_prefix
        content = b"".join(pprof.write(whole, Metric.BYTES))
        return Parcel(from_s, until_s, content)

    def request(self, parcel: Parcel) -> tuple[str, dict[str, str], bytes]:
        """Returns (URL, headers, body) of a request, whose body is a form with the file."""
        body, boundary = _form(parcel.content, self._prefix)
        query = urllib.parse.urlencode(
            {"name": self._name(), "from": int(parcel.from_s)}
            | {"until": max(1, round(parcel.until_s))}
            | {"format": "pprof", "spyName": "tracelloc"}
        )
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return f"{self._config.url}?{query}", headers, body

    def is_retryable(self, status: int) -> bool:
        """Whether a request is sent again after this status: a server error or rate limit."""
        return status in (408, 429) or status >= 500

    def refused(self, _answer: bytes) -> tuple[int, str]:
        """Returns (0, ""), as the server accepts or refuses whole requests."""
        return 0, ""

    def _name(self) -> str:
        target = self._target
        labels = {"hostname": socket.gethostname(), "pid": str(target.pid)}
        labels |= {"container": target.container_id[:12]} if target.container_id else {}
        labels |= {"pod": target.pod_uid} if target.pod_uid else {}
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
        """Encodes a compressed request with the profiles of all processes."""
        message = new_request()
        elapsed_ns = max(0, round((until_s - from_s) * 1e9))
        timed = [replace(each, time_s=until_s, elapsed_ns=elapsed_ns) for each in profiles]
        # The server can recognize a request repeated after a lost response.
        otlp.fill(
            message, timed, attributes=self._attributes, new_id=lambda: secrets.token_bytes(16)
        )
        return Parcel(from_s, until_s, gzip.compress(message.SerializeToString(), 6, mtime=0))

    def request(self, parcel: Parcel) -> tuple[str, dict[str, str], bytes]:
        """Returns (URL, headers, body) of a request."""
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        return self._config.url, headers | dict(self._config.headers), parcel.content

    def is_retryable(self, status: int) -> bool:
        """Whether OTLP declares a status retryable."""
        return status in (429, 502, 503, 504)

    def refused(self, answer: bytes) -> tuple[int, str]:
        """Returns (number of refused profiles, message) of the server's answer."""
        message = new_response()
        try:
            message.ParseFromString(answer)
        except Exception:  # noqa: BLE001 - DecodeError of a library that need not be there
            return 0, "its answer cannot be read"
        partial = message.partial_success
        return max(0, partial.rejected_profiles), partial.error_message
