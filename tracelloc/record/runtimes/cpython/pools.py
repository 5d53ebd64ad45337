"""CPython's small objects: the pools of its allocator, and their blocks in use.

Objects of up to 512 bytes lie in pools of 16 KiB in arenas that come from mmap(2). All blocks of a
pool have one size. A pool begins with an unmistakable header (``struct pool_header``,
Include/internal/pycore_obmalloc.h; the same from 3.10 to 3.15). So finding pools needs no symbol:
all multiples of 16 KiB in anonymous memory are checked.

With PYTHONMALLOC=debug, or in development mode, an allocation lies between words of the debug
hooks (``_PyMem_DebugRawAlloc``, Objects/obmalloc.c): before it are its size and seven forbidden
bytes, behind it eight more.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.record.process.memory import PAGE_BYTES, PRESENT, U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import parse_maps
from tracelloc.record.runtimes.cpython.blocks import Addresses, find_blocks

I64 = npt.NDArray[np.int64]

POOL_BYTES: Final = 1 << 14
HEADER_BYTES: Final = 48
_ARENA_BYTES: Final = 1 << 20
_POOL_WORDS: Final = POOL_BYTES // 8
_CLASSES: Final = 32
_ALIGNMENT: Final = 16
_PAGES_AT_ONCE: Final = 1 << 16
_FORBIDDEN: Final = np.uint64(0xFDFDFDFDFDFDFD)
_DEBUG_WORDS: Final = 2  # Words of the debug hooks before what is allocated
_DEBUG_BYTES: Final = np.uint64(24)  # Least bytes of a block that the debug hooks take


@dataclass(frozen=True, slots=True)
class PoolBlocks:
    """Blocks of CPython's allocator that are in use, in the order of their addresses."""

    words: U64  # The memory of all pools, one after the other, followed by some zero words
    at: I64  # Where in `words` each block begins
    size_bytes: U64
    changed: int  # Pools that changed while they were read: their blocks are approximate
    pools: Addresses  # Numbers of the pools, by address
    addresses: U64  # Addresses of the pools, by their numbers
    every: Addresses  # All pools of the process, by address

    def beyond(self, pointers: U64, seen: Addresses) -> U64:
        """Returns new addresses outside pools among ``pointers``, and adds them to ``seen``."""
        found = np.empty(len(pointers), np.uint64)
        return found[: seen.fresh(pointers, self.every, found)]

    def addresses_of(self, at: I64) -> U64:
        """Returns the address of each index in ``words``."""
        return self.addresses[at // _POOL_WORDS] + (at % _POOL_WORDS * 8).astype(np.uint64)

    def locate(self, addresses: U64) -> I64:
        """Returns the index of each address in ``words``; -1 if it is not in a pool."""
        at = np.empty(len(addresses), np.int64)
        self.pools.locate(addresses, at)
        return at


def read_blocks(memory: RemoteMemory, addresses: U64, every: Addresses) -> PoolBlocks:
    """Reads some pools, and finds the blocks in use. ``every``: all pools of the process."""
    contents, was_read = memory.read(addresses, POOL_BYTES)
    addresses, contents = addresses[was_read], contents[was_read]
    words = np.zeros(len(addresses) * _POOL_WORDS + 8, np.uint64)
    words[:-8] = contents.reshape(-1)
    del contents
    at = np.empty(len(addresses) * (POOL_BYTES // _ALIGNMENT), np.int64)
    size_bytes = np.empty(len(at), np.uint64)
    count, changed = find_blocks(words, addresses, at, size_bytes)
    at, size_bytes = _without_debug_hooks(words, at[:count].copy(), size_bytes[:count].copy())
    pools = Addresses()
    pools.add(addresses, 0)
    return PoolBlocks(words, at, size_bytes, changed, pools, addresses, every)


def _without_debug_hooks(words: U64, at: I64, size_bytes: U64) -> tuple[I64, U64]:
    """Returns start and size of each block's content, without words of the debug hooks."""
    forbidden = words[at + 1] >> np.uint64(8) == _FORBIDDEN
    if np.count_nonzero(forbidden) * 2 < len(at):
        return at, size_bytes
    at, size_bytes = at[forbidden], size_bytes[forbidden]
    return at + _DEBUG_WORDS, np.maximum(size_bytes, _DEBUG_BYTES) - _DEBUG_BYTES


def find_pools(memory: RemoteMemory) -> U64:
    """Returns addresses of all pools with blocks in use. Raises TargetError, PrivilegeError."""
    found = [np.empty(0, np.uint64)]
    for mapping in parse_maps(memory.process.maps_text()).values():
        if mapping.inode or not (mapping.path == "" or mapping.path.startswith("[anon")):
            continue
        start = -(-mapping.start // POOL_BYTES) * POOL_BYTES
        step = _PAGES_AT_ONCE * PAGE_BYTES
        for low in range(start, mapping.end - POOL_BYTES + 1, step):
            high = min(low + step, mapping.end // POOL_BYTES * POOL_BYTES)
            present = memory.pages(low, high, PRESENT)[:: max(1, POOL_BYTES // PAGE_BYTES)]
            present = np.repeat(present, max(1, PAGE_BYTES // POOL_BYTES))
            places = np.uint64(low) + np.flatnonzero(present).astype(np.uint64) * np.uint64(
                POOL_BYTES
            )
            headers, was_read = memory.read(places, HEADER_BYTES)
            found.append(places[was_read & _are_headers(headers)])
    return np.concatenate(found)


def pool_ranges(memory: RemoteMemory) -> list[tuple[int, int]]:
    """Returns (start, end) of all memory with pools. Raises TargetError, PrivilegeError."""
    pools = find_pools(memory)
    if not len(pools):
        return []
    cuts = np.flatnonzero(np.diff(pools) > np.uint64(_ARENA_BYTES))
    first = pools[np.concatenate([[0], cuts + 1])].tolist()
    last = pools[np.concatenate([cuts, [len(pools) - 1]])].tolist()
    return [(start, end + POOL_BYTES) for start, end in zip(first, last, strict=True)]


def _are_headers(headers: U64) -> Mask:
    low = np.uint64(0xFFFFFFFF)
    count, classes = headers[:, 0], headers[:, 4] >> np.uint64(32)
    begun, last = headers[:, 5] & low, headers[:, 5] >> np.uint64(32)
    block_bytes = (classes + np.uint64(1)) * np.uint64(_ALIGNMENT)
    room = np.uint64(POOL_BYTES - HEADER_BYTES)
    good: Mask = (classes < _CLASSES) & (last == np.uint64(POOL_BYTES) - block_bytes)
    good &= (count & low > 0) & ((count & low) * block_bytes <= room)
    good &= (begun >= HEADER_BYTES) & (begun <= POOL_BYTES)
    return good
