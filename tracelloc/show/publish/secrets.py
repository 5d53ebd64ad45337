"""Passwords and tokens, from files or the environment, as command lines are public."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError, UsageError
from tracelloc.startup import OWN_VARIABLES

PUSH_PASSWORD: Final = "TRACELLOC_PUSH_PASSWORD"  # noqa: S105 - a name
# Variables that are read if no file is named. Child processes do not inherit them.
LISTEN_TOKEN: Final = "TRACELLOC_LISTEN_TOKEN"  # noqa: S105 - a name
_LARGEST_BYTES: Final = 4096


def read_secret(
    path: Path | None, variable: str, environment: Mapping[str, str] = OWN_VARIABLES
) -> str | None:
    """Returns the first line of the file, else the variable; None if there is neither.

    Raises UsageError for files that can't be read or have no such line.
    """
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
    """Returns the header's value or None. Basic (RFC 7617), or Bearer (RFC 6750) without a user.

    ``user`` may include the password after a colon.
    """
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
