"""The error of all readers."""

from __future__ import annotations


class MalformedError(Exception):
    """The content is not what it should be; the text says why, for people."""
