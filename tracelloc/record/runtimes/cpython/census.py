"""Census of a running CPython program: the number of objects of each type, and their bytes.

Nothing is stopped and nothing is probed. Memory is read while the program runs, so objects that
change meanwhile may be counted twice or not at all (``changed_pools`` counts the affected pools).
On a stopped program the numbers are exact.

A census sees all objects of up to 512 bytes, and larger ones if the garbage collector tracks them,
with the tables of lists, dictionaries and sets. It does not see larger strings, bytes and
integers, nor other allocations of C extensions. Those come from malloc, where stacks are traced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracelloc.model.objects import ObjectCensus, TypeCount
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.cpython.large import (
    TABLE,
    LargeObjects,
    own_bytes,
    read_large,
    table_bytes,
)
from tracelloc.record.runtimes.cpython.names import TypeNames
from tracelloc.record.runtimes.cpython.pools import I64, PoolBlocks, read_blocks
from tracelloc.record.runtimes.cpython.types import Objects, Types


@dataclass(frozen=True, slots=True)
class FoundObjects:
    """All objects at one time, with the memory of the pools."""

    memory: RemoteMemory
    types: Types
    names: TypeNames
    blocks: PoolBlocks
    objects: Objects
    large: LargeObjects


class Censuses:
    """Takes censuses of a process; types are looked up once."""

    def __init__(self, process: Process, now_s: Callable[[], float] = time.time) -> None:
        """``now_s``: returns the time since 1970, in seconds."""
        self._now_s = now_s
        self._memory = RemoteMemory(process)
        self._types = Types(self._memory)
        self._names = TypeNames(self._memory, self._types)
        self._last: FoundObjects | None = None

    def take_census(self, *, keep: bool = False, most_bytes: int | None = None) -> ObjectCensus:
        """Counts all objects.

        ``keep``: keeps them for ``take_found``. ``most_bytes``: limit of the pools to read. Raises
        TargetError, PrivilegeError, TooManyPools.
        """
        time_s, begin_s = self._now_s(), time.monotonic()
        found = self._find(most_bytes)
        blocks, objects, large = found.blocks, found.objects, found.large
        of = np.concatenate([objects.type, large.type])
        sizes = np.concatenate(
            [blocks.size_bytes[objects.block], own_bytes(self._types, large.type, large.words)]
        )
        table_words = np.concatenate([blocks.words[objects.at + TABLE], large.words[:, TABLE]])
        sizes += table_bytes(self._memory, self._types, blocks, of, table_words)
        self._last = found if keep else None
        return ObjectCensus(
            time_s,
            time.monotonic() - begin_s,
            self._by_name(of, sizes),
            len(blocks.at),
            int(blocks.size_bytes.sum()),
            blocks.changed,
        )

    def _find(self, most_bytes: int | None = None) -> FoundObjects:
        blocks = read_blocks(self._memory, most_bytes)
        objects = self._types.find_objects(blocks)
        large = read_large(self._memory, self._types, blocks, objects)
        return FoundObjects(self._memory, self._types, self._names, blocks, objects, large)

    def take_found(self) -> FoundObjects:
        """Returns the objects of the last census, with their memory, and drops them here."""
        found, self._last = self._last or self._find(), None
        return found

    def _by_name(self, of: I64, sizes: U64) -> tuple[TypeCount, ...]:
        counts = np.bincount(of)
        size_bytes = np.bincount(of, sizes.astype(np.float64))
        sums: dict[str, tuple[int, int]] = {}
        for number in np.flatnonzero(counts).tolist():
            name = self._names.name_of(number)
            count, total = sums.get(name, (0, 0))
            sums[name] = count + int(counts[number]), total + int(size_bytes[number])
        found = (TypeCount(name, count, total) for name, (count, total) in sums.items())
        return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.name)))
