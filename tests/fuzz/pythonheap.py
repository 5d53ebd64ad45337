"""The heap of a CPython process, changed by steps that bytes describe, also while it is read.

Everything that is read for objects and their holders lies in memory that the process can write:
pools, types, tables, threads and frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np

from tracelloc.errors import TargetError
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.runtimes.cpython import holders
from tracelloc.record.runtimes.cpython.census import CensusTaker, TypeNames
from tracelloc.record.runtimes.cpython.codeobjects import CodeObjects
from tracelloc.record.runtimes.cpython.frames import FrameCodes, running_frames
from tracelloc.record.runtimes.cpython.interpreter import VERSIONS, CPython, UnsupportedRuntime
from tracelloc.record.runtimes.cpython.types import Types

# A step: a word of the memory, what becomes of it, after how many reads, and a value.
STEP: Final = struct.Struct("<HBBQ")
_MOST_STEPS: Final = 512
_POOL: Final = 1 << 14
# Of the pools; of the interpreter with its types and threads; of the tables.
_STARTS: Final = (0x7F0000000000, 0x7F0000100000, 0x7F0000200000)
_SIZES: Final = (3 * _POOL, 1 << 14, 1 << 14)
_POOLS, _DATA, _TABLES = _STARTS
_TYPE_BYTES: Final = 512
_RUNTIME: Final = _DATA + 0x3800
# The minor version from which on a thread's record points to its frame by itself.
_WITHOUT_INNER: Final = 13
_WITH_LONG_STRINGS: Final = 11  # The minor version whose strings have a word more before their text
_HEAP, _READY, _GC = 1 << 9, 1 << 12, 1 << 14
_LEAF, _LIST, _TUPLE, _DICT, _CLASS = 1 << 24, 1 << 25, 1 << 26, 1 << 29, 1 << 31
_MANAGED_DICT, _INLINE_VALUES = 1 << 4, 1 << 2
_TYPES: Final = {
    "type": (_CLASS | _GC, 800, 0), "int": (_LEAF, 24, 4), "str": (1 << 28, 40, 0),
    "list": (_LIST | _GC, 40, 0), "tuple": (_TUPLE | _GC, 24, 8), "dict": (_DICT | _GC, 48, 0),
    "set": (_GC, 200, 0), "collections.deque": (_GC, 200, 0), "module": (_GC, 56, 0),
    "weakref.ReferenceType": (_GC, 72, 0), "code": (0, 200, 2), "generator": (_GC, 100, 8),
    "functools._lru_cache_wrapper": (_GC, 120, 0), "_thread._local": (_GC, 64, 0),
    "_asyncio.Task": (_GC, 300, 0), "app.Thing": (_GC | _HEAP | _MANAGED_DICT, 16, 0),
    "app.Other": (_GC | _HEAP | _MANAGED_DICT | _INLINE_VALUES, 16, 0),
    "app.Slotted": (_GC | _HEAP, 40, 0), "function": (_GC, 136, 0),
    "_contextvars.Context": (_GC, 40, 0),
}  # fmt: skip
# What `_Py_DebugOffsets` says, from 3.13 on.
_OFFSETS: Final = {
    "interpreters": 40, "threads": 72, "next": 8, "frame": 56, "thread_id": 144, "previous": 8,
    "code": 0, "instruction": 56, "locals": 80, "entry": 70, "file": 112, "name": 128,
    "lines": 136, "first_line": 68, "instructions": 192, "collector": 96,
}  # fmt: skip


class _Builder:
    """A small sound heap."""

    def __init__(self, minor: int) -> None:
        self._minor = minor
        self.words = np.zeros(sum(_SIZES) // 8, np.uint64)
        self.types: dict[str, int] = {}
        self._free = _TABLES

    def set(self, address: int, *values: int) -> None:
        at = _word_of(address)
        self.words[at : at + len(values)] = values

    def table(self, *values: int) -> int:
        """A table or text beside the pools."""
        address, self._free = self._free, self._free + 16 * (len(values) // 2 + 1)
        self.set(address, *values)
        return address

    def text(self, text: str) -> int:
        content = text.encode() + bytes(8 - len(text) % 8)
        return self.table(*struct.unpack(f"<{len(content) // 8}Q", content))

    def string(self, text: str) -> int:
        """A ``str`` object."""
        content = text.encode() + bytes(8 - len(text) % 8)
        words = struct.unpack(f"<{len(content) // 8}Q", content)
        head = (1, self.types.get("str", 0), len(text), 7, 1 << 6 | 1 << 2)
        return self.table(*head, *[0] * (self._minor == _WITH_LONG_STRINGS), *words)

    def dictionary(self, items: dict[int, int]) -> int:
        """The keys of a dictionary."""
        entries = [word for key, value in items.items() for word in (key, value)]
        return self.table(1, 3 | 3 << 8 | 1 << 16, 8, len(items), 0, *entries)

    def build(self) -> U64:
        for number, (name, (flags, base, item)) in enumerate(_TYPES.items()):
            address = self.types[name] = _DATA + number * _TYPE_BYTES
            words = [0] * 34
            words[0:6] = 1, self.types["type"], 0, self.text(name), base, item
            words[21] = flags | _READY
            self.set(address, *words)
        module = self.string("__module__")
        names = self.dictionary({module: self.string("app"), self.string("x"): module})
        for name in ("app.Thing", "app.Other", "app.Slotted"):
            self.set(self.types[name] + 33 * 8, self.table(1, self.types["dict"], 2, 0, names))
        sizes = 64, 96, 256
        places = [self._pool(number, size) for number, size in enumerate(sizes)]
        blocks = [address for addresses in places for address in addresses]
        for number, address in enumerate(blocks):
            self._object(address, list(_TYPES)[number % len(_TYPES)], blocks, names, number)
        self._runtime(blocks)
        return self.words

    def _pool(self, number: int, size: int) -> list[int]:
        address = _POOLS + number * _POOL
        count = min(60, (_POOL - 48) // size)
        begun = 48 + count * size
        last = _POOL - size
        self.set(address, count, 0, 0, 0, (size // 16 - 1) << 32, begun | last << 32)
        return [address + 48 + n * size for n in range(count)]

    def _object(self, block: int, name: str, blocks: list[int], names: int, number: int) -> None:
        flags, *_ = _TYPES[name]
        before = 2 * bool(flags & _GC) + 2 * bool(flags & _MANAGED_DICT)
        address = block + 8 * before
        near = blocks[(number + 1) % len(blocks)] + 16, blocks[(number * 7) % len(blocks)] + 16
        words = [1, self.types[name], 2, near[0], 4, near[1]]
        if name == "list":
            words[3] = self.table(*near, *near)
        elif name == "dict":
            words[4] = self.dictionary({self.string("key"): near[0]}) if number % 3 else names
        elif name == "set":
            words[4:6] = 3, self.table(*near, 0, 0, *near, 0, 0)
        elif name == "collections.deque":
            words[3] = words[4] = self.table(0, *near)
        elif name == "module":
            items = {self.string("__name__"): self.string("app"), self.string("all"): near[0]}
            words[2] = self.table(1, self.types["dict"], 2, 0, self.dictionary(items))
        self.set(address, *words[: min(6, 8 - before)])
        if flags & _MANAGED_DICT:
            self.set(block, 0, near[1])

    def _runtime(self, blocks: list[int]) -> None:
        table = [0] * 90
        table[0] = int.from_bytes(b"xdebugpy", "little")
        for name, place in (VERSIONS[self._minor, True].places or {}).items():
            table[place] = _OFFSETS[name]
        name = self.string("function")
        code = self.table(1, self.types["code"], *[3] * 10, *[name] * 8, 0, 0, 0, 0)
        frame = self.table(code, 0, 0, 0, code, *[0] * 4, *[near + 16 for near in blocks[3:7]])
        inner = self.table(frame, frame) if self._minor < _WITHOUT_INNER else frame
        thread = self.table(*[0] * 7, inner, *[0] * 6, *[blocks[8] + 16] * 4, 7, 0, 7,
                            *[near + 16 for near in blocks[:10]])  # fmt: skip
        interpreter = self.table(0, 0, thread, *[0] * 6, thread)
        self.set(_RUNTIME, *table)
        self.set(_RUNTIME + 48, interpreter)


@cache
def _sound(minor: int) -> U64:
    return _Builder(minor).build()


def _word_of(address: int) -> int:
    before = 0
    for start, size in zip(_STARTS, _SIZES, strict=True):
        if start <= address < start + size:
            return (before + address - start) // 8
        before += size
    raise ValueError(address)


class _Process:
    """What is asked of the process besides its memory."""

    pid = 7
    directory = "/proc/7"

    def __init__(self, memory: FuzzedMemory) -> None:
        self._memory = memory

    def maps_text(self) -> str:
        places = zip(_STARTS, _SIZES, ("", "[x]", "[heap]"), strict=True)
        lines = (
            f"{at:x}-{at + size:x} rw-p 00000000 00:00 0 {path}\n" for at, size, path in places
        )
        return "".join(lines)

    def read_memory(self, address: int, size_bytes: int) -> bytes:
        return self._memory.bytes_at(address, size_bytes)

    def thread_name(self, thread_id: int) -> str:
        return str(thread_id)


class FuzzedMemory(RemoteMemory):
    """Memory that steps change, after so many reads."""

    def __init__(self, data: bytes, minor: int) -> None:
        self.process = cast(Any, _Process(self))
        self._words = _sound(minor).copy()
        self._content = memoryview(self._words.view(np.uint8))
        self._later: list[tuple[int, int, int, int]] = []
        self._reads = 0
        for step in _steps(data):
            if step[2]:
                self._later.append(step)
            else:
                self._change(step)
        self._later.sort(key=lambda step: -step[2])

    def _change(self, step: tuple[int, int, int, int]) -> None:
        place, what, _, value = step
        at = place % len(self._words)
        word = int(self._words[at])
        size = sum(_SIZES)
        choices = (
            value, _address_of(value % size), word + value % 256 - 128, value % 64,
            word & ~0xFF | value & 0xFF, word & 0xFFFFFFFF | value << 32, word ^ 1 << value % 64,
            int(self._words[value % len(self._words)]),
        )  # fmt: skip
        self._words[at] = choices[what % len(choices)] & (1 << 64) - 1

    def pages(self, start: int, end: int, _flag: np.uint64) -> Mask:
        """All are present."""
        return np.ones((end - start) // 4096, np.bool_)

    def bytes_at(self, address: int, size_bytes: int) -> bytes:
        """As many as can be read."""
        self._reads += 1
        while self._later and self._later[-1][2] <= self._reads:
            self._change(self._later.pop())
        before = 0
        for start, size in zip(_STARTS, _SIZES, strict=True):
            if start <= address < start + size:
                first = before + address - start
                return bytes(self._content[first : min(first + size_bytes, before + size)])
            before += size
        return b""

    def fetch(self, pieces: U64, into: U64) -> int:
        target = memoryview(into.reshape(-1).view(np.uint8))
        got = 0
        for address, size_bytes in pieces.tolist():
            piece = self.bytes_at(address, size_bytes)
            assert got + len(piece) <= len(target), "it is read to where there is no room"
            target[got : got + len(piece)] = piece
            got += len(piece)
            if len(piece) < size_bytes:
                break
        return got


def _address_of(offset: int) -> int:
    for start, size in zip(_STARTS, _SIZES, strict=True):
        if offset < size:
            return start + offset
        offset -= size
    raise ValueError(offset)


def _steps(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    usable = len(data) // STEP.size * STEP.size
    for number, (place, what, when, value) in enumerate(STEP.iter_unpack(data[:usable])):
        if number == _MOST_STEPS:
            return
        yield place, what, when, value


class _Python(CPython):
    """The interpreter, of a version that the data chooses."""

    def __init__(self, memory: FuzzedMemory, minor: int) -> None:
        self._memory = memory
        self._process = cast(Any, SimpleNamespace(pid=7))
        self.address, self.version = _RUNTIME, (3, minor)
        self.layout = self._find_layout()
        self.codes = CodeObjects(self.layout.code, _DATA + 10 * _TYPE_BYTES, self.read)

    def read(self, address: int, size_bytes: int) -> bytes:
        return self._memory.bytes_at(address & (1 << 64) - 1, size_bytes)


def play(data: bytes) -> int:
    """The reader: nothing in the process's memory may do harm. Returns how many were looked at."""
    minor = 15 if data[:1] == b"\xff" else 11 + (data or bytes(1))[0] % 4
    memory = FuzzedMemory(data[1:], minor)
    censuses = CensusTaker(memory.process)
    censuses._memory = memory
    censuses._types = types = Types(memory)
    censuses._names = TypeNames(memory, types)
    looked_at = 0
    with suppress(TargetError, UnsupportedRuntime):
        now = censuses.take_census(most_bytes=1 << 20)
        assert all(one.count > 0 for one in now.types)
        found = censuses.take_found()
        if found is None:  # more than that: they were read in pieces
            return looked_at
        python = _Python(memory, minor)
        names = [one.name for one in now.types[:12]]
        graph = holders._Graph(found, running_frames(python, FrameCodes(python)), python, names)
        looked_at += sum(graph.holders(name, None).sample_count for name in names)
    return looked_at


def honest() -> list[bytes]:
    """Each version, by itself and with some steps."""
    steps = b"".join(STEP.pack(97 * n, n, 3 * n, 7919 * n * n) for n in range(64))
    return [bytes([minor]) + some for minor in range(4) for some in (b"", steps)]
