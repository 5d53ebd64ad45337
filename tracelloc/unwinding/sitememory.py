"""Which code of large files stacks came by, remembered on disk from one run to the next.

Rows of small files are all made when tracing begins; those of a large one (a browser, a
compiler) are made when a stack first needs them, and until then its stacks are left to
user space. So where stacks came by is kept per build ID, and the next run begins with the
rows for these places.

Only places are kept. What the rows say is read from the file's own call-frame information
each time, so that a file of ours that is wrong, or a build ID that is a lie, costs some
useless rows and nothing else.

A file holds a digest (BLAKE2b, 16 bytes) and the addresses behind it, as the mapped file
counts them: 64 bits each, little-endian, ascending.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.invoker import Invoker, replace_file, rights_of, trusted_bytes

U64 = npt.NDArray[np.uint64]

_DIGEST_BYTES: Final = 16
_MOST_SITES: Final = 1 << 16
"""Per file: 512 KiB."""
_MOST_FILES: Final = 64
"""The least lately used one is dropped for another: 32 MiB at most."""
_BUILD_ID: Final = re.compile(r"[0-9a-f]{8,128}")
_SUFFIX: Final = ".sites"


class SiteMemory:
    """Addresses of call sites by build ID, in the user's cache directory.

    Whatever goes wrong, there is just nothing remembered.
    """

    def __init__(self, who: Invoker) -> None:
        self._who = who
        self._directory = who.cache / "tracelloc" / "call-sites"

    def recall(self, build_id: str | None) -> U64:
        """What was remembered of this file, ascending; often nothing."""
        path = self._path(build_id)
        if path is not None:
            with contextlib.suppress(OSError), rights_of(self._who):
                content = trusted_bytes(path, self._who, _DIGEST_BYTES + 8 * _MOST_SITES)
                digest, sites = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                if digest == _digest(sites) and len(sites) % 8 == 0:
                    os.utime(path)
                    return np.frombuffer(sites, "<u8").astype(np.uint64)
        return np.empty(0, np.uint64)

    def remember(self, build_id: str | None, sites: U64) -> None:
        """Adds to what is known of a file; when that is too much, these come first."""
        path = self._path(build_id)
        if path is None or not len(sites):
            return
        new = np.unique(sites)[:_MOST_SITES]
        old = np.setdiff1d(self.recall(build_id), new, assume_unique=True)
        content = np.sort(np.append(new, old[: _MOST_SITES - len(new)])).astype("<u8").tobytes()
        with contextlib.suppress(OSError), rights_of(self._who):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, [_digest(content), content])
            self._drop_oldest()

    def _path(self, build_id: str | None) -> Path | None:
        if build_id is None or not _BUILD_ID.fullmatch(build_id):
            return None
        return self._directory / (build_id + _SUFFIX)

    def _drop_oldest(self) -> None:
        files = [path for path in self._directory.iterdir() if path.suffix == _SUFFIX]
        by_use = sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in by_use[_MOST_FILES:]:
            path.unlink(missing_ok=True)


def _digest(sites: bytes) -> bytes:
    return hashlib.blake2b(sites, digest_size=_DIGEST_BYTES).digest()
