"""Accounts of resident memory for tests."""

from tracelloc.model.blocks import BlockSum
from tracelloc.model.heapusage import ArenaUsage, HeapUsage, MemoryAccount, MemoryPart, PinnedPages
from tracelloc.model.process import MallocLibrary

MIB = 1 << 20


def arena(
    name: str, free_bytes: int = 0, library: MallocLibrary = MallocLibrary.GLIBC
) -> ArenaUsage:
    return ArenaUsage(
        name, library, 64 * MIB, 64 * MIB, BlockSum(1, MIB), BlockSum(), BlockSum(1, free_bytes), 0,
        0, {MemoryPart.FREE: free_bytes},
    )  # fmt: skip


def usage(
    time_s: float = 0.0,
    *,
    arenas: tuple[ArenaUsage, ...] = (arena("main arena"),),
    trimmable_bytes: int | None = None,
    pinned: PinnedPages | None = None,
    **parts: int,
) -> HeapUsage:
    """``parts``: MiB by the names of ``MemoryPart``, in lower case."""
    found = {MemoryPart[name.upper()]: size * MIB for name, size in parts.items()}
    account = MemoryAccount(found, {MemoryPart.FILES: (("libc.so.6", MIB),)}, page_table_bytes=4096)
    return HeapUsage(
        time_s, arenas, trimmable_bytes=trimmable_bytes, account=account,
        pinned=pinned or PinnedPages(),
    )  # fmt: skip
