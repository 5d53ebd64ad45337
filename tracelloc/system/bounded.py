"""Bounded reading of untrusted compressed data and JSON.

A kilobyte of zlib may expand to a megabyte, and three bytes of JSON to a list of 64 bytes. So sizes
are checked before memory of that size is allocated.
"""

import json
import zlib
from typing import Any, Final

from tracelloc.errors import MalformedError

MOST_MEMORY_BYTES: Final = 512 << 20  # Most memory for the content of one file
_CHUNK_BYTES: Final = 1 << 18
# Approximate memory of a JSON value, with its slot in a list or dictionary. In Python, an empty
# list takes 56 bytes and a dictionary with one pair 184.
_VALUE_BYTES: Final = 80


class UnpackBudget:
    """Counts down the memory that remains for unpacking one file."""

    def __init__(self, most_bytes: int = MOST_MEMORY_BYTES) -> None:
        self.most_bytes = most_bytes
        self.left_bytes = most_bytes

    def check(self, size_bytes: int) -> None:
        """Raises MalformedError if less than ``size_bytes`` remains."""
        if size_bytes > self.left_bytes:
            raise MalformedError(f"it would take more than {self.most_bytes >> 20} MiB of memory")

    def spend(self, size_bytes: int) -> None:
        """Subtracts memory that stays in use. Raises MalformedError if less remains."""
        self.check(size_bytes)
        self.left_bytes -= size_bytes


def json_bytes(text: bytes) -> int:
    """Returns the approximate memory of a JSON text and its parsed values, in bytes."""
    values = sum(map(text.count, (b",", b"[", b"{", b":")))
    # One wide character makes Python store the whole string wide.
    return _VALUE_BYTES * values + (2 if text.isascii() else 9) * len(text)


def parse_json(text: bytes, most_bytes: int = MOST_MEMORY_BYTES) -> Any:
    """Parses JSON if it needs at most ``most_bytes``. Raises MalformedError, ValueError."""
    UnpackBudget(most_bytes).check(json_bytes(text))
    try:
        return json.loads(text)
    except RecursionError as error:
        raise MalformedError("its JSON is nested too deeply") from error


class Inflater:
    """Reads a zlib stream piece by piece."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._tail = b""
        self._stream = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Reads exactly ``size`` bytes. Raises MalformedError if data is missing or damaged."""
        parts: list[bytes] = []
        while size:
            part = self._some(size)
            if not part:
                raise MalformedError("a part of it is cut off")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Raises MalformedError unless the whole stream has been read."""
        if self._some(1):
            raise MalformedError("a part of it is longer than it should be")
        if not self._stream.eof:
            raise MalformedError("a part of it is cut off")

    def _some(self, most: int) -> bytes:
        """Returns up to ``most`` further bytes; none at the end of the stream or of the data."""
        while not self._stream.eof:
            chunk = self._tail or self._data[self._at : self._at + _CHUNK_BYTES]
            if not self._tail:
                self._at += len(chunk)
            try:
                part = self._stream.decompress(chunk, most)
            except zlib.error as error:
                raise MalformedError(f"its compression is damaged ({error})") from error
            self._tail = self._stream.unconsumed_tail
            if part or not chunk:
                return part
        return b""


def inflated(data: bytes, most_bytes: int) -> bytes:
    """Unpacks a zlib stream. Raises MalformedError if it is too large, truncated or damaged."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, most_bytes)
    except zlib.error as error:
        raise MalformedError(f"its compression is damaged ({error})") from error
    if not stream.eof:
        raise MalformedError("a part of it is cut off or implausibly large")
    return content
