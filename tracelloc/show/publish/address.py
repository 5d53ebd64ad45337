"""Addresses to listen on and to push to, as written on the command line, and their secrets.

Passwords and tokens come from files or the environment, as command lines are public.
"""

import ipaddress
import re
import urllib.parse
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import TracellocError, UsageError
from tracelloc.startup import OWN_VARIABLES

LOOPBACK: Final = "127.0.0.1"
_OTLP: Final = "otlp+"
_ADDRESS: Final = re.compile(
    r"(?:(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]/\s]+)):)?(?P<port>\d{1,5})"
)
_LABEL: Final = re.compile(r"(?P<key>[A-Za-z_][A-Za-z0-9_.]*)=(?P<value>[^,={}\"\s]+)")


PUSH_INTERVAL_S: Final = 15.0  # Default time between two pushed profiles


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address, where port 0 lets the kernel choose."""

    host: str  # Host name or IP address
    port: int
    # Token that clients must send; None if none is required.
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PushConfig:
    """A server that receives profiles, and the parameters of its requests."""

    url: str  # The ingest endpoint, without user and password
    # Value of the Authorization header; None without one.
    authorization: str | None = field(repr=False)
    interval_s: float  # Time between two pushes
    name: str | None  # Name of the application; None: the target's command
    labels: tuple[tuple[str, str], ...]  # Labels of all pushed profiles
    is_otlp: bool = False  # Whether the server takes OTLP; if not, it is compatible with Pyroscope
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def parse_listen(text: str) -> ListenAddress:
    """Parses ``PORT``, ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ValueError with a sentence."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is not [HOST:]PORT")
    return ListenAddress(match["six"] or match["host"] or LOOPBACK, int(match["port"]))


def is_loopback(host: str) -> bool:
    """Whether the name or address of a host is that of this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_open_to_readers(url: str) -> bool:
    """Whether data sent to a URL crosses a network unencrypted."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "http" and not (host.endswith(".localhost") or is_loopback(host))


def parse_label(text: str) -> tuple[str, str]:
    """Parses ``key=value`` in characters that Pyroscope's names allow. Raises ValueError."""
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not KEY=VALUE, without quotes, commas and braces")
    return match["key"], match["value"]


def parse_push_url(text: str) -> tuple[str, str | None, bool]:
    """Parses ``[otlp+]http[s]://[USER[:PASSWORD]@]HOST[:PORT][/PATH]``. Raises ValueError.

    Returns (endpoint, ``user`` or ``user:password`` or None, whether it takes OTLP).
    """
    # The message does not quote the text, which may contain a password.
    wrong = (
        "the URL to push to must look like http://HOST[:PORT], https://USER:PASSWORD@HOST or "
        "otlp+http://HOST:4318"
    )
    try:
        parts = urllib.parse.urlsplit(text.removeprefix(_OTLP))
        port = parts.port
    except ValueError as error:
        raise ValueError(wrong) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(wrong)
    is_otlp = text.startswith(_OTLP)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/")
    endpoint = "/v1development/profiles" if is_otlp else "/ingest"
    if not path.endswith(endpoint):
        path += endpoint
    user = None
    if parts.username is not None:
        user = urllib.parse.unquote(parts.username)
        if parts.password is not None:
            user = f"{user}:{urllib.parse.unquote(parts.password)}"
    return urllib.parse.urlunsplit((parts.scheme, place, path, "", "")), user, is_otlp


PUSH_PASSWORD: Final = "TRACELLOC_PUSH_PASSWORD"  # noqa: S105 - a name
# Variables that are read if no file is named. Child processes do not inherit them.
LISTEN_TOKEN: Final = "TRACELLOC_LISTEN_TOKEN"  # noqa: S105 - a name
_LARGEST_BYTES: Final = 4096


def read_secret(
    path: Path | None, variable: str, environment: Mapping[str, str] = OWN_VARIABLES
) -> str | None:
    """Returns a file's first line, or else a variable's value, or None. Raises TracellocError."""
    if path is None:
        return environment.get(variable) or None
    try:
        with path.open("rb") as stream:
            content = stream.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise TracellocError(f"{path} cannot be read: {error.strerror}") from error
    secret = content.split(b"\n", 1)[0].rstrip(b"\r")
    if not secret or len(secret) > _LARGEST_BYTES:
        raise UsageError(f"{path} has no secret in its first line")
    return secret.decode(errors="surrogateescape")


def authorization(user: str | None, password: str | None) -> str | None:
    """Returns Basic (RFC 7617) of ``user[:password]``, else Bearer (RFC 6750), or None."""
    if user is None:
        return None if password is None else f"Bearer {password}"
    if ":" not in user:
        user = f"{user}:{password or ''}"
    return f"Basic {b64encode(user.encode(errors='surrogateescape')).decode()}"


def is_authorized(header: str, token: str) -> bool:
    """Whether an ``Authorization`` header has the token, as Bearer or as Basic's password."""
    import hmac  # noqa: PLC0415 - options need no cryptography

    scheme, _, value = header.partition(" ")
    given = value.strip().encode(errors="surrogateescape")
    if scheme.lower() == "basic":
        try:
            given = b64decode(given, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given, token.encode(errors="surrogateescape"))
