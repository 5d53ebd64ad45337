"""Censuses of a running CPython program: the number of objects of each type, and their bytes.

Nothing is stopped and nothing is probed. Memory is read while the program runs, so objects that
change meanwhile may be counted twice or not at all (``changed_pools`` counts the affected pools).
On a stopped program the numbers are exact.

A census sees all objects of up to 512 bytes, and larger ones if the garbage collector tracks them,
with the tables of lists, dictionaries and sets. It does not see larger strings, bytes and
integers, nor other allocations of C extensions: these come from malloc, where stacks are traced.
"""

import re
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import F64
from tracelloc.model.objects import ObjectCensus, TypeCount
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.cpython.blocks import Addresses
from tracelloc.record.runtimes.cpython.pools import (
    POOL_BYTES,
    PoolBlocks,
    find_pools,
    read_blocks,
)
from tracelloc.record.runtimes.cpython.types import (
    HEAP_TYPE,
    TABLE,
    UNCOUNTED,
    LargeObjects,
    Objects,
    TypeObject,
    Types,
    own_bytes,
    read_large,
    table_bytes,
)
from tracelloc.text import format_size

_KEY: Final = re.compile(rb"__module__\0")
_MOST_ENTRIES: Final = 1 << 12
_STRING_BYTES: Final = 56  # Most bytes of a string before its text: 48 (40 from 3.12), and some
_POOLS_AT_ONCE: Final = (16 << 20) // POOL_BYTES
_NO_HOLDERS: Final = "{} of Python's objects are too much to be searched for holders (--max-memory)"


@dataclass(slots=True)
class TypeNames:
    """Names of types by type number, each looked up once."""

    memory: RemoteMemory
    types: Types
    _names: dict[int, str] = field(default_factory=dict)
    _module_key: int = 0  # The address of the string `__module__`, which all classes use as a key
    _text_at: int = 0  # Where the text of an ASCII string begins

    def name_of(self, number: int) -> str:
        """Returns a type's name: ``module.Name``, or just ``Name`` of a built-in type."""
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = self._find(self.types.known[number])
        return name

    def named(self, *names: str) -> Mask:
        return np.array([self.name_of(n) in names for n in range(len(self.types.known))], np.bool_)

    def _find(self, known: TypeObject) -> str:
        name = self.memory.text(known.name) or "?"
        if not known.flags & HEAP_TYPE or "." in name or not known.dictionary:
            return name
        module = self._module(known.dictionary)
        return name if module in ("", "builtins") else f"{module}.{name}"

    def _module(self, dictionary: int) -> str:
        for key, value in self.entries(dictionary):
            if key == self._module_key or (not self._module_key and self._is_module_key(key)):
                words = self._words(value, 3)
                if len(words) < 3 or not 0 < words[2] < 1 << 10:
                    return ""
                text = self.memory.process.read_memory(value + self._text_at, words[2])
                return text.decode("ascii", errors="replace")
        return ""

    def entries(self, dictionary: int) -> list[tuple[int, int]]:
        """Returns (key, value) addresses of a dictionary's entries (pycore_dict.h)."""
        keys = self._words(dictionary, 5)[4:]
        header = self._words(keys[0], 4) if keys else []
        if len(header) < 4:
            return []
        index_bytes, kind, count = header[1] >> 8 & 0xFF, header[1] >> 16 & 0xFF, header[3]
        if index_bytes > 32 or count > _MOST_ENTRIES:
            return []
        width = 3 if kind == 0 else 2
        words = self._words(keys[0] + 32 + (1 << index_bytes), width * count)
        rows = zip(words[width - 2 :: width], words[width - 1 :: width], strict=False)
        return [(key, value) for key, value in rows if key and value]

    def _is_module_key(self, address: int) -> bool:
        found = _KEY.search(self.memory.process.read_memory(address, _STRING_BYTES + 16))
        if found is None:
            return False
        self._module_key, self._text_at = address, found.start()
        return True

    def _words(self, address: int, count: int) -> list[int]:
        read = self.memory.process.read_memory(address, 8 * count)
        words: list[int] = np.frombuffer(read[: len(read) // 8 * 8], np.uint64).tolist()
        return words


@dataclass(frozen=True, slots=True)
class FoundObjects:
    """All objects that a census found, with the memory of the pools."""

    memory: RemoteMemory
    types: Types
    names: TypeNames
    blocks: PoolBlocks
    objects: Objects
    large: LargeObjects


class CensusTaker:
    """Takes censuses of a process's objects; types are looked up once."""

    def __init__(self, process: Process, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._memory = RemoteMemory(process)
        self._types = Types(self._memory)
        self._names = TypeNames(self._memory, self._types)
        self._last: FoundObjects | None = None

    def take_census(self, *, most_bytes: int | None = None) -> ObjectCensus:
        """Counts all objects of the process by type, and keeps them for ``take_found``.

        ``most_bytes``: most of the pools to read at a time; if there are more, nothing is kept.
        Raises TargetError, PrivilegeError.
        """
        time_s, begin_s = self._now_s(), time.monotonic()
        pools, every, seen = find_pools(self._memory), Addresses(), Addresses()
        every.add(pools, 0)
        is_whole = most_bytes is None or len(pools) * POOL_BYTES <= most_bytes
        at_once = len(pools) or 1 if is_whole else _POOLS_AT_ONCE
        sums = np.zeros((2, 0))
        count, size_bytes, changed = 0, 0, 0
        for first in range(0, len(pools) or 1, at_once):
            found = self._find(pools[first : first + at_once], every, seen)
            blocks = found.blocks
            more = self._sums(found)
            sums = np.pad(sums, ((0, 0), (0, more.shape[1] - sums.shape[1]))) + more
            count, size_bytes = count + len(blocks.at), size_bytes + int(blocks.size_bytes.sum())
            changed += blocks.changed
            self._last = found if is_whole else None
            del found, blocks
        return ObjectCensus(
            time_s, time.monotonic() - begin_s, self._by_name(sums), count, size_bytes, changed,
            "" if is_whole else _NO_HOLDERS.format(format_size(len(pools) * POOL_BYTES)),
        )  # fmt: skip

    def _find(self, pools: U64, every: Addresses, seen: Addresses) -> FoundObjects:
        blocks = read_blocks(self._memory, pools, every)
        objects = self._types.find_objects(blocks)
        large = read_large(self._memory, self._types, blocks, objects, seen)
        return FoundObjects(self._memory, self._types, self._names, blocks, objects, large)

    def take_found(self) -> FoundObjects | None:
        """Returns the objects of the last census, with their memory, once; None: not kept."""
        found, self._last = self._last, None
        return found

    def _sums(self, found: FoundObjects) -> F64:
        blocks, objects, large = found.blocks, found.objects, found.large
        of = np.concatenate([objects.type, large.type])
        large_bytes = own_bytes(self._types, self._names.named(*UNCOUNTED), large.type, large.words)
        sizes = np.concatenate([blocks.size_bytes[objects.block], large_bytes])
        table_words = np.concatenate([blocks.words[objects.at + TABLE], large.words[:, TABLE]])
        sizes += table_bytes(self._memory, self._types, blocks, of, table_words)
        count = len(self._types.known)
        weights = sizes.astype(np.float64)
        return np.stack([np.bincount(of, None, count), np.bincount(of, weights, count)])

    def _by_name(self, figures: F64) -> tuple[TypeCount, ...]:
        counts, size_bytes = figures
        sums: dict[str, tuple[int, int]] = {}
        for number in np.flatnonzero(counts).tolist():
            name = self._names.name_of(number)
            count, total = sums.get(name, (0, 0))
            sums[name] = count + int(counts[number]), total + int(size_bytes[number])
        found = (TypeCount(name, count, total) for name, (count, total) in sums.items())
        return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.name)))
