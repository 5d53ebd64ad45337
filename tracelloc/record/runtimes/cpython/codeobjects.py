"""Names of CPython's functions, from the copies that the probes make of code objects.

Data that did not fit into a copy is read from the process's memory while it is still there.
"""

from __future__ import annotations

import functools
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.model.frames import RuntimeFrame
from tracelloc.record import abi

# Lines of a CPython function's instructions (Objects/locations.md of CPython, 3.11 on).

_UNIT_BYTES: Final = 2
_NO_LINE: Final = 15
_LONG: Final = 14
_NO_COLUMN: Final = 13
_ONE_LINE: Final = (10, 11, 12)
_MOST_LINES: Final = (1 << 31) - 1
_NONE: Final = -1  # Stands for no line


class LineTable:
    """The decoded ``co_linetable`` of one code object."""

    def __init__(self, table: bytes, first_line: int) -> None:
        """``table``: a ``co_linetable``, which is decoded when needed, up to the first damage."""
        self._table = table
        self._first_line = self._line = first_line
        self._starts = array("I")
        self._lines = array("i")
        self._at = self._end = 0  # Of the table; and where the decoded instructions end

    def _decode(self, offset: int) -> None:
        table, line, start, at = self._table, self._line, self._end, self._at
        while at < len(table) and start <= offset:
            code = table[at] >> 3 & 15
            length = (table[at] & 7) + 1
            at += 1
            if code in (_LONG, _NO_COLUMN):
                change, at = _signed(table, at)
                line += change
                for _ in range(3 if code == _LONG else 0):
                    _, at = _unsigned(table, at)
            elif code in _ONE_LINE:
                line += code - _ONE_LINE[0]
                at += 2
            elif code != _NO_LINE:
                at += 1
            self._starts.append(start)
            self._lines.append(_NONE if code == _NO_LINE else max(_NONE, min(line, _MOST_LINES)))
            start += length * _UNIT_BYTES
        self._line, self._end, self._at = line, start, at

    def line(self, offset: int) -> int | None:
        """Returns the line of the instruction at an offset in bytes; None if it has none."""
        if offset < 0:
            return self._first_line
        self._decode(offset)
        if offset >= self._end:
            return None
        line = self._lines[bisect_right(self._starts, offset) - 1]
        return None if line == _NONE else line


def _unsigned(table: bytes, at: int) -> tuple[int, int]:
    """Decodes a number stored in pieces of 6 bits; returns it and where the next one begins."""
    value = shift = 0
    while at < len(table):
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return value, at


def _signed(table: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(table, at)
    return (-(value >> 1) if value & 1 else value >> 1), at


ReadMemory = Callable[[int, int], bytes]  # Up to so many bytes at an address: what can be read

_MOST_KNOWN: Final = 1 << 17  # Code objects with kept names; a large program has ten thousand
_LONGEST_NAME: Final = 1 << 10  # Most characters of a name; file names are paths
_LONGEST_TABLE: Final = 1 << 18
_FIRST_BYTES: Final = 512  # Bytes of a string to read at first: most strings are shorter
_FIRST_TABLE_BYTES: Final = 2048
_CODE_BYTES: Final = 256
_MASK: Final = (1 << 64) - 1
_SEED: Final = 0x9E3779B97F4A7C15
_IDENTITY_AT: Final = (24, 32, 64, 72, 88, 136)
_FLAGS_AT: Final = 48
_IS_FUNCTION: Final = 2  # Fields by which `probes/python.bpf.c` identifies code objects
_TYPE_AND_LENGTH: Final = slice(8, 24)
_HASH_AT: Final = 24  # Offset of a string's hash
_BYTES_AT: Final = 32  # Offset of the content of a `bytes` object
_KIND_SHIFT: Final = 2
_IS_ASCII: Final = 1 << 6  # In `state` of `PyASCIIObject`
_CODECS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """Byte offsets of fields in code objects and strings, for one version of CPython."""

    file: int  # `co_filename`
    name: int  # `co_qualname`
    lines: int  # `co_linetable`
    first_line: int  # `co_firstlineno`
    instructions: int  # Where the bytecode begins
    ascii_bytes: int  # Size of `PyASCIIObject`; larger string structures have 16 or 24 bytes more
    compact_bytes: int  # Size of `PyCompactUnicodeObject`
    has_versions: bool = True  # Whether each code object has a version number of its own
    head: int = 0  # Bytes before each object, which the probes and the offsets leave out


@dataclass(frozen=True, slots=True)
class _Function:
    name: str | None
    file: str | None = None
    first_line: int | None = None
    lines: LineTable | None = None


# Pieces of a `struct python_code`: index of the words that describe one; offset of the piece.
_PIECES: Final = tuple((2 + 2 * n, start) for n, start in enumerate(abi.PYTHON_PIECE_STARTS))


class _Copy:
    """The probes' copy of a code object and the objects that it refers to."""

    def __init__(self, words: Sequence[int]) -> None:
        """``words``: a ``struct python_code`` from ``code`` on."""
        content = struct.pack(f"<{len(words)}Q", *words)
        self._pieces = {words[at]: content[start : start + words[at + 1]] for at, start in _PIECES}

    def read(self, address: int, size_bytes: int) -> bytes:
        """Returns bytes at an address of the process, as far as they were copied."""
        # Pieces may overlap: the bytes behind an object are copied as well.
        found = (
            piece[address - start :][:size_bytes]
            for start, piece in self._pieces.items()
            if start <= address
        )
        return max(found, key=len, default=b"")


class CodeObjects:
    """Code objects of a process and of its forked children, each read once.

    A code object that is gone before it is read has no name. The ``identity`` from the probes
    distinguishes a code object from a later one at its address (``probes/python.bpf.c``).
    """

    def __init__(self, layout: CodeLayout, code_type: int, read: ReadMemory) -> None:
        self._layout = layout
        self._type = code_type
        self._read = read
        self._known: dict[tuple[int, int], _Function] = {}

    def share_names(self, parent: CodeObjects) -> None:
        """Shares the names of the process from which this one was forked."""
        self._known = parent._known

    def note_copy(self, words: Sequence[int]) -> None:
        """Stores the copy of a code object by the probes: ``struct python_code`` from ``code``."""
        code, identity = words[:2]
        function = self._look_up(code, identity, _Copy(words).read)
        if function.name is not None and len(self._known) < _MOST_KNOWN:
            self._known[code, identity] = function

    def frame(self, code: int, reached: int) -> RuntimeFrame:
        """Returns the frame for two words of the probes (``struct python_stack``)."""
        identity, offset = reached >> 32, reached & 0xFFFFFFFF
        function = self._known.get((code, identity))
        if function is None:
            function = self._look_up(code, identity, self._read)
            if len(self._known) < _MOST_KNOWN:
                self._known[code, identity] = function
        if function.lines is None:
            return RuntimeFrame(function.name, function.file, None, function.first_line)
        line = function.lines.line((offset ^ 1 << 31) - (1 << 31) - self._layout.instructions)
        return RuntimeFrame(function.name, function.file, line, function.first_line)

    def text(self, address: int) -> str | None:
        """Returns the text of the string object at an address; None if it can't be read."""
        return self._text(address + self._layout.head, self._read)

    def function(self, code: int) -> RuntimeFrame:
        image, layout = self._read(code, _CODE_BYTES), self._layout
        words = _words(image)
        if len(image) < _CODE_BYTES or words[1] != self._type:
            return RuntimeFrame(None)
        name, file = (self.text(words[at // 8]) for at in (layout.name, layout.file))
        return RuntimeFrame(name, file, None, struct.unpack_from("<i", image, layout.first_line)[0])

    def _look_up(self, code: int, identity: int, read: ReadMemory) -> _Function:
        image = read(code, _CODE_BYTES)
        layout = self._layout
        if len(image) < layout.lines + 8:
            return _Function(None)
        words = _words(image)
        if words[1] != self._type or self._identity(words, read) != identity:
            return _Function(None)
        first_line: int = struct.unpack_from("<i", image, layout.first_line)[0]
        name, file, lines = (
            words[at // 8] + layout.head for at in (layout.name, layout.file, layout.lines)
        )
        table = LineTable(self._bytes(lines, read), first_line)
        return _Function(self._text(name, read), self._text(file, read), first_line, table)

    def _identity(self, words: tuple[int, ...], read: ReadMemory) -> int:
        """Returns the hash that identifies a code object at its address, as the probes do."""
        layout = self._layout
        parts = [words[at // 8] for at in _IDENTITY_AT]
        if layout.has_versions or words[_FLAGS_AT // 8] & _IS_FUNCTION:
            parts.append(words[layout.name // 8])
        else:
            parts += _words(read(words[layout.name // 8] + _HASH_AT, 8))
            parts += _words(read(words[layout.lines // 8] + _BYTES_AT, 16))
        return functools.reduce(_mix, parts) >> 32

    def _text(self, address: int, read: ReadMemory) -> str | None:
        """Returns the text of a string object, by ``read``; None if it can't be read."""
        layout = self._layout
        image = read(address, layout.compact_bytes + _FIRST_BYTES)
        if len(image) < layout.compact_bytes:
            return None
        length, _, state = struct.unpack_from("<qqI", image, 16)
        kind, is_ascii = state >> _KIND_SHIFT & 7, bool(state & _IS_ASCII)
        if kind not in _CODECS or length < 0:
            return None
        start = layout.ascii_bytes if is_ascii else layout.compact_bytes
        end = start + min(length, _LONGEST_NAME) * kind
        image = self._whole(address, image, start, end)
        text = image[start:end].decode(_CODECS[kind], errors="backslashreplace")
        return text if len(image) >= end else text + "…"

    def _bytes(self, address: int, read: ReadMemory) -> bytes:
        image = read(address, _FIRST_TABLE_BYTES)
        if len(image) < _BYTES_AT:
            return b""
        end = _BYTES_AT + max(0, min(struct.unpack_from("<q", image, 16)[0], _LONGEST_TABLE))
        return self._whole(address, image, _BYTES_AT, end)[_BYTES_AT:end]

    def _whole(self, address: int, beginning: bytes, start: int, end: int) -> bytes:
        """Returns an object up to ``end`` if it still has this beginning, else just the beginning.
        ``start``: where the content begins. Reference counts and cached fields may differ.
        """
        if end <= len(beginning):
            return beginning
        whole = self._read(address, end)
        is_it = all(
            whole[part] == beginning[part]
            for part in (_TYPE_AND_LENGTH, slice(start, len(beginning)))
        )
        return whole if is_it else beginning


def _words(image: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f"<{len(image) // 8}Q", image)


def _mix(hashed: int, value: int) -> int:
    hashed = (hashed ^ value) * _SEED & _MASK
    return hashed ^ hashed >> 29
