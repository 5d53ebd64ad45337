"""Remembers on disk, from one run to the next, which call sites of large files stacks pass.

Rows of small files are all made when tracing begins. Rows of a large file (a browser, a compiler)
are made when a stack first needs them; until then, its stacks are finished in user space. So the
call sites that stacks passed are kept per build ID, and the next run begins with their rows.

Only call sites are kept. The rows are made from the file's own call-frame information each time,
so that a wrong cache file or a forged build ID costs some useless rows and nothing else.

A file holds a digest (BLAKE2b, 16 bytes), then the file addresses: 64 bits each, little-endian,
ascending.
"""

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
_MOST_SITES: Final = 1 << 16  # Per file: 512 KiB
_MOST_FILES: Final = 64  # The least recently used one is dropped for another: 32 MiB at most
_BUILD_ID: Final = re.compile(r"[0-9a-f]{8,128}")
_SUFFIX: Final = ".sites"


class SiteMemory:
    """Call sites by build ID, in the user's cache directory; none on any error."""

    def __init__(self, who: Invoker) -> None:
        self._files = CacheDirectory(who, "call-sites", _SUFFIX, _MOST_FILES)

    def recall(self, build_id: str | None) -> U64:
        """Returns the remembered call sites of a file, ascending; often none."""
        if _is_name(build_id):
            with contextlib.suppress(OSError):
                content = self._files.recall(build_id, _DIGEST_BYTES + 8 * _MOST_SITES)
                digest, sites = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                if digest == _digest(sites) and len(sites) % 8 == 0:
                    return np.frombuffer(sites, "<u8").astype(np.uint64)
        return np.empty(0, np.uint64)

    def remember(self, build_id: str | None, sites: U64) -> None:
        """Stores call sites of a file; if there are too many, new ones take precedence."""
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
