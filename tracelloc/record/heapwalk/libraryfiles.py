"""Finds the files that have a malloc library in them, by their names or a text in them."""

import errno
import os
import re
from collections.abc import Iterator
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.model.codefiles import FileId, Mapping, base_name
from tracelloc.record.heapwalk.arenas import NotWalkableError
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region

_MOST_FILE_BYTES: Final = 64 << 20
_FILE_PIECE_BYTES: Final = 1 << 20
_LONGEST_MATCH_BYTES: Final = 128
_MOST_FILES: Final = 1 << 12
_HAVE_IT: Final[dict[tuple[FileId, str, bytes], bool]] = {}  # Reading a file's data takes long


def is_named(region: Region, name: str) -> bool:
    """Whether a region is of a file with a name in its name."""
    return bool(region.inode) and name in base_name(region.path)


def refusal(
    library: str, region: Region | None, what: str = "has another layout"
) -> NotWalkableError:
    """Returns the error that a library's heap can't be walked, with its file's name."""
    file = f" ({base_name(region.path)})" if region else ""
    return NotWalkableError(
        f"the heap of {library}{file} can't be walked: it {what}, has not been used yet, or is too "
        "busy",
        hint="tracelloc -p PID traces what is allocated from now on",
    )


def find_library(process: Process, regions: list[Region], name: str, text: bytes) -> list[int]:
    """Returns the numbers of regions with data of files with the name, or else the text."""
    data = [n for n, r in enumerate(regions) if re.fullmatch("rw.p", r.rights) and r.inode]
    if named := [n for n in data if is_named(regions[n], name)]:
        return named
    maps = process.maps()
    mappings = ((n, maps.find(regions[n].start)) for n in data)
    return [n for n, mapping in mappings if mapping and _may_have_it(process, mapping, text)]


def _may_have_it(process: Process, mapping: Mapping, text: bytes) -> bool:
    key = mapping.file_id, mapping.path, text
    if key not in _HAVE_IT:
        if len(_HAVE_IT) >= _MOST_FILES:
            _HAVE_IT.clear()
        try:
            _HAVE_IT[key] = any(text in piece for piece in _pieces(process, mapping))
        except (OSError, TargetError):
            _HAVE_IT[key] = True
    return _HAVE_IT[key]


def search_file(
    process: Process, mapping: Mapping, pattern: re.Pattern[bytes]
) -> re.Match[bytes] | None:
    """Searches a mapped file for a pattern. Raises OSError (also if too large), TargetError."""
    return next(filter(None, map(pattern.search, _pieces(process, mapping))), None)


def _pieces(process: Process, mapping: Mapping) -> Iterator[bytes]:
    """Yields a file's content in pieces that overlap. Raises as ``search_file``."""
    with open(process.open_mapping(mapping), "rb") as file:
        before = b""
        for _ in range(_MOST_FILE_BYTES // _FILE_PIECE_BYTES):
            piece = file.read(_FILE_PIECE_BYTES)
            yield before + piece
            if len(piece) < _FILE_PIECE_BYTES:
                return
            before = piece[-_LONGEST_MATCH_BYTES:]
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
