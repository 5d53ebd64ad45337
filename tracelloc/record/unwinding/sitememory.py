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
import re
from typing import Final, TypeGuard

import numpy as np
import numpy.typing as npt

from tracelloc.system.invoker import Invoker
from tracelloc.system.safefiles.cache import CacheDirectory

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
        self._files = CacheDirectory(who, "call-sites", _SUFFIX, _MOST_FILES)

    def recall(self, build_id: str | None) -> U64:
        """What was remembered of this file, ascending; often nothing."""
        if _is_name(build_id):
            with contextlib.suppress(OSError):
                content = self._files.recall(build_id, _DIGEST_BYTES + 8 * _MOST_SITES)
                digest, sites = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                if digest == _digest(sites) and len(sites) % 8 == 0:
                    return np.frombuffer(sites, "<u8").astype(np.uint64)
        return np.empty(0, np.uint64)

    def remember(self, build_id: str | None, sites: U64) -> None:
        """Adds to what is known of a file; when that is too much, these come first."""
        if not _is_name(build_id) or not len(sites):
            return
        new = np.unique(sites)[:_MOST_SITES]
        old = np.setdiff1d(self.recall(build_id), new, assume_unique=True)
        content = np.sort(np.append(new, old[: _MOST_SITES - len(new)])).astype("<u8").tobytes()
        self._files.remember(build_id, [_digest(content), content])


def _is_name(build_id: str | None) -> TypeGuard[str]:
    return build_id is not None and _BUILD_ID.fullmatch(build_id) is not None


def _digest(sites: bytes) -> bytes:
    return hashlib.blake2b(sites, digest_size=_DIGEST_BYTES).digest()
