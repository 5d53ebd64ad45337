"""Addresses to listen on and to push to, as written on the command line."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass, field
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(
    r"(?:(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]/\s]+)):)?(?P<port>\d{1,5})"
)
_LABEL: Final = re.compile(r"(?P<key>[A-Za-z_][A-Za-z0-9_.]*)=(?P<value>[^,={}\"\s]+)")


PUSH_INTERVAL_S: Final = 15.0
"""Between two pushed profiles, unless another time is given."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address; port 0 lets the kernel choose."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PushConfig:
    """A server that takes profiles, and what to tell it."""

    url: str
    """The ingest endpoint, without user and password."""
    authorization: str | None = field(repr=False)
    """User and password, ``user:password``."""
    interval_s: float
    """Between two profiles."""
    name: str | None
    """Name of the application; None: the target's command."""
    labels: tuple[tuple[str, str], ...]


def parse_listen(text: str) -> ListenAddress:
    """Parses ``PORT``, ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ValueError with a sentence."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is not [HOST:]PORT")
    return ListenAddress(match["six"] or match["host"] or LOOPBACK, int(match["port"]))


def parse_label(text: str) -> tuple[str, str]:
    """Parses ``key=value`` in characters that Pyroscope's names allow. Raises ValueError."""
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not KEY=VALUE, without quotes, commas and braces")
    return match["key"], match["value"]


def parse_push_url(text: str) -> tuple[str, str | None]:
    """(URL of the ingest endpoint, ``user:password`` or None). Raises ValueError."""
    # The text itself is not repeated: it may hold a password.
    wrong = "the URL to push to must look like http://HOST[:PORT] or https://USER:PASSWORD@HOST"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(wrong) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(wrong)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/")
    if not path.endswith("/ingest"):
        path += "/ingest"
    user = None
    if parts.username is not None:
        secret = urllib.parse.unquote(parts.password or "")
        user = f"{urllib.parse.unquote(parts.username)}:{secret}"
    return urllib.parse.urlunsplit((parts.scheme, place, path, "", "")), user
