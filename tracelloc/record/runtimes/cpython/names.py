"""Qualified names of types, with their modules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.runtimes.cpython.types import TypeObject, Types

_HEAP_TYPE: Final = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: created at run time."""
_KEY: Final = re.compile(rb"__module__\0")
_MOST_ENTRIES: Final = 1 << 12
_STRING_BYTES: Final = 56
"""Most bytes of a string before its text: 48, from 3.12 on 40; with some room."""


@dataclass(slots=True)
class TypeNames:
    """Names by type number, each looked up once."""

    memory: RemoteMemory
    types: Types
    _names: dict[int, str] = field(default_factory=dict)
    _module_key: int = 0
    """The address of the string ``__module__``, which all classes use as a key."""
    _text_at: int = 0
    """Where the text of an ASCII string begins."""

    def name_of(self, number: int) -> str:
        """``module.Name``, or just ``Name`` of a built-in type."""
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = self._find(self.types.known[number])
        return name

    def _find(self, known: TypeObject) -> str:
        name = self.memory.text(known.name) or "?"
        if not known.flags & _HEAP_TYPE or "." in name or not known.dictionary:
            return name
        module = self._module(known.dictionary)
        return name if module in ("", "builtins") else f"{module}.{name}"

    def _module(self, dictionary: int) -> str:
        """The value of ``__module__`` in a class's dictionary; empty if it can't be read."""
        for key, value in self.entries(dictionary):
            if key == self._module_key or (not self._module_key and self._is_module_key(key)):
                return self._string(value)
        return ""

    def entries(self, dictionary: int) -> list[tuple[int, int]]:
        """(key, value) of a dictionary's entries (``PyDictKeysObject``, pycore_dict.h)."""
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

    def _string(self, address: int) -> str:
        words = self._words(address, 3)
        if len(words) < 3 or not 0 < words[2] < 1 << 10:
            return ""
        text = self.memory.process.read_memory(address + self._text_at, words[2])
        return text.decode("ascii", errors="replace")

    def _words(self, address: int, count: int) -> list[int]:
        read = self.memory.process.read_memory(address, 8 * count)
        words: list[int] = np.frombuffer(read[: len(read) // 8 * 8], np.uint64).tolist()
        return words
