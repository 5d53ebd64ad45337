"""Notes in ELF files: words of name size, content size and type, then both (elf(5))."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<III")


class Note(NamedTuple):
    """One note."""

    name: bytes
    kind: int
    content: bytes  # Shorter than `size_bytes` if the notes end in it
    size_bytes: int  # Size of the content by its header


def notes_in(data: bytes) -> Iterator[Note]:
    """Yields the notes of a segment or section, up to where they end."""
    at = 0
    while at + _HEAD.size <= len(data):
        name_size, content_size, kind = _HEAD.unpack_from(data, at)
        name_at = at + _HEAD.size
        content_at = name_at + (name_size + 3 & ~3)
        content = data[content_at : content_at + content_size]
        yield Note(data[name_at : name_at + name_size], kind, content, content_size)
        at = content_at + (content_size + 3 & ~3)
