"""Strings that only the interpreter's cache of methods keeps.

The cache has 4,096 entries: the version of a type, the name of an attribute that was looked up, and
what was found (``struct type_cache_entry``, pycore_typeobject.h; in ``PyInterpreterState``). A name
that is computed, as by ``getattr(visitor, f"visit_{kind}")``, is another string each time and fills
another entry, so such names grow in number until all entries are in use.
"""

from typing import Final

import numpy as np

from tracelloc.record.runtimes.cpython.frames import interpreter_words
from tracelloc.record.runtimes.cpython.interpreter import CPython

METHOD_CACHE: Final = "the interpreter's method cache"
# The cache ends within this distance of the beginning of the interpreter's record.
_MOST_BYTES: Final = 1 << 20


class MethodCache:
    """The method cache of a process's main interpreter, as it was when read."""

    def __init__(self, python: CPython) -> None:
        words = interpreter_words(python, _MOST_BYTES)
        # In front of a name is the version: 32 bits, and four bytes of nothing.
        is_name = np.zeros(len(words), np.bool_)
        is_name[1:] = (words[:-1] >> np.uint64(32) == 0) & (words[:-1] != 0)
        self._names = np.unique(words[is_name])

    def has(self, address: int) -> bool:
        """Whether an entry's name is the string at an address."""
        at = int(np.searchsorted(self._names, np.uint64(address)))
        return at < len(self._names) and int(self._names[at]) == address
