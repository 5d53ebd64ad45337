"""Files of other tools and of our own, read back as profiles."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

from tracelloc.errors import MalformedError, TracellocError
from tracelloc.reading import folded, jsonfile, pprof
from tracelloc.views.profile import FIGURES, Profile

__all__ = ["LARGEST_BYTES", "read_profile"]

LARGEST_BYTES: Final = 1 << 28
"""Of a file's content, unpacked; dozens of times what ten thousand stacks take."""
_LARGEST_SUM: Final = 1 << 60
"""Of a figure of all stacks."""
_GZIP: Final = b"\x1f\x8b"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def read_profile(path: Path) -> Profile:
    """A pprof file, a snapshot in JSON, or folded stacks: the content tells which.

    Raises TracellocError, in one line, for what is none of them or damaged.
    """
    try:
        content = _content(path)
        if content.lstrip()[:1] == b"{":
            profile = jsonfile.read(content)
        elif not _is_text(content):
            profile = pprof.read(content, path.stat().st_mtime)
        else:
            profile = folded.read(content, path.stat().st_mtime)
        _check(profile)
    except OSError as error:
        raise TracellocError(f"{path} cannot be read: {error.strerror}") from error
    except MalformedError as error:
        raise TracellocError(
            f"{path} cannot be read: {error}",
            hint="known are pprof files, JSON snapshots and folded stacks",
        ) from error
    return profile


def _check(profile: Profile) -> None:
    """That 64 bits hold the sums of its figures, and of two such profiles."""
    befores = [sample.before for sample in profile.samples if sample.before is not None]
    stats = [*(sample.stat for sample in profile.samples), *befores]
    for figure in FIGURES:
        if sum(abs(figure.of(stat)) for stat in stats) > _LARGEST_SUM:
            raise MalformedError(f"its {figure.name} are more than can be true")


def _content(path: Path) -> bytes:
    with path.open("rb") as stream:
        packed = stream.read(LARGEST_BYTES + 1)
    if packed[:2] != _GZIP:
        if len(packed) > LARGEST_BYTES:
            raise MalformedError("it is larger than 256 MiB")
        return packed
    unpacker = zlib.decompressobj(31)
    try:
        content = unpacker.decompress(packed, LARGEST_BYTES + 1)
    except zlib.error as error:
        raise MalformedError(f"its compression is damaged ({error})") from error
    if len(content) > LARGEST_BYTES:
        raise MalformedError("it is larger than 256 MiB, unpacked")
    if not unpacker.eof:
        raise MalformedError("it ends too early")
    return content


def _is_text(content: bytes) -> bool:
    """Folded stacks are; a profile has control characters among its first bytes."""
    return not _CONTROL.search(content, 0, 4096)
