"""The probes' rows, in memory that both sides share (``struct row_set``, probes/maps.h).

A key is the address of the byte before a return address, with a tag above it that says
which address space it is of, and since which change of what is mapped there. It may lie
in any of the four ways of its set.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.record.abi import KEY_TAG_SHIFT, SALT_BITS, TAG_BITS
from tracelloc.record.kernel.rowsets import move_rows, put_rows

U64 = npt.NDArray[np.uint64]

_ADDRESS_MASK: Final = np.uint64((1 << KEY_TAG_SHIFT) - 1)
_SHIFT: Final = np.uint64(KEY_TAG_SHIFT)
_TAGS: Final = 1 << TAG_BITS
_SALTS: Final = 1 << SALT_BITS
_PER_SALT: Final = _TAGS // _SALTS
_HASHED: Final = (1 << KEY_TAG_SHIFT + SALT_BITS) - 1
"""The part of a key that its place depends on: the address and the tag's salt. Without the salt,
programs that lie at fixed addresses would all want the same places."""


class RowMemory:
    """The rows of all address spaces, and their tags. Under its lock."""

    def __init__(self, sets: npt.NDArray[Any]) -> None:
        """``sets``: an array of ``abi.ROW_SET_DTYPE``, a power of two of them."""
        self.lock = threading.Lock()
        self.evictions = 0
        """Rows that had to make room for others."""
        self._own = sets
        self._sets: U64 = sets.view(np.uint64).reshape(len(sets), -1)
        self._keys: U64 = sets["keys"]
        self._rows: U64 = sets["rows"]
        self._users: Counter[int] = Counter()
        self._rows_under = np.zeros(_TAGS, np.int64)
        """By tag in use: how many rows there are."""
        self._is_free = np.zeros(_TAGS, np.bool_)
        """By tag: whether ways under it count as empty. Nobody looks for what they hold."""
        self._is_free[0] = True
        self._salt = 0
        self._last_tags = list(range(_SALTS))

    def move(self, sets: npt.NDArray[Any]) -> None:
        """Has everything in another array of as many sets from here on, where walks look for it."""
        with self.lock:
            sets[:] = self._sets.view(sets.dtype).ravel()
            self._sets = sets.view(np.uint64).reshape(len(sets), -1)
            self._keys, self._rows = sets["keys"], sets["rows"]

    def move_back(self) -> None:
        """Has everything in the first array again."""
        self.move(self._own)

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        return int(self._keys.size)

    def count(self) -> int:
        """Rows that are there."""
        return int(self._rows_under.sum())

    def new_tag(self, like: int | None = None) -> int:
        """A tag that nobody uses; 0 belongs to nobody.

        ``like``: one under which rows of the same addresses have the same places.
        """
        if like is None:
            self._salt = (self._salt + 1) % _SALTS
        salt = self._salt if like is None else like % _SALTS
        while True:
            # Those that were not used for longest come first: a probe may still be looking.
            tags = ((self._last_tags[salt] + n * _SALTS) % _TAGS for n in range(1, _PER_SALT + 1))
            usable = (t for t in tags if not self._is_free[t] and t not in self._users)
            tag = next(usable, None)
            if tag is not None:
                break
            self._sweep()
        self._last_tags[salt] = tag
        self._users[tag] = 1
        return tag

    def _sweep(self) -> None:
        """Empties all ways under released tags."""
        self._keys[self._is_free[self._keys >> _SHIFT]] = 0
        self._is_free[1:] = False

    def share_tag(self, tag: int) -> None:
        """Another address space has the same code mapped at the same addresses."""
        self._users[tag] += 1

    def release_tag(self, tag: int) -> None:
        """Drops the rows under a tag with the last address space that uses it."""
        self._users[tag] -= 1
        if not self._users[tag]:
            del self._users[tag]
            self._rows_under[tag] = 0
            self._is_free[tag] = True

    def insert(self, addresses: U64, rows: U64, tag: int) -> None:
        """Adds rows."""
        free = self._is_free.view(np.uint8)
        victim = self.evictions
        self.evictions += put_rows(
            self._sets, addresses, rows, tag, _HASHED, free, self._rows_under, victim
        )

    def is_shared(self, tag: int) -> bool:
        """Whether several address spaces use it."""
        return self._users[tag] > 1

    def retag(self, old: int, new: int, starts: U64, ends: U64) -> None:
        """Gives the rows of one tag another one, and that tag back.

        Only those whose addresses are in ``starts[n] <= a < ends[n]``, sorted; the others
        are dropped. What another address space needs stays as it was.
        """
        if not len(starts):
            self.release_tag(old)
            return
        if self._users[old] > 1:
            at = np.flatnonzero(self._keys >> _SHIFT == np.uint64(old))
            addresses = self._keys.flat[at] & _ADDRESS_MASK
            mapping = np.searchsorted(starts, addresses, side="right") - 1
            kept = (mapping >= 0) & (addresses < ends[np.maximum(mapping, 0)])
            rows = self._rows.flat[at[kept]]
            self.release_tag(old)
            self.insert(addresses[kept], rows, new)
        else:
            del self._users[old]
            self._rows_under[old] = 0
            self._rows_under[new] = move_rows(self._sets, old, new, starts, ends)


class RowTable:
    """Rows of one address space, by address. Safe to use from several threads."""

    def __init__(
        self,
        memory: RowMemory,
        publish: Callable[[int, int], None],
        generation: int = 0,
        like: RowTable | None = None,
    ) -> None:
        """``publish(generation, tag)`` tells the probes which keys are for what is mapped.

        ``like``: of a process that had the same mapped when this one was forked off it.
        """
        self._memory = memory
        self._publish = publish
        self._generation = generation
        with memory.lock:
            if like is None:
                self._tag = memory.new_tag()
            else:
                self._tag = like._tag
                memory.share_tag(self._tag)
            publish(generation, self._tag)

    def fork(self, publish: Callable[[int, int], None], generation: int) -> RowTable:
        """Lends the rows to another address space, until either needs rows of its own."""
        return RowTable(self._memory, publish, generation, self)

    @property
    def is_shared(self) -> bool:
        """Whether another address space has the same rows: no others may be added."""
        return self._memory.is_shared(self._tag)

    @property
    def capacity(self) -> int:
        """Rows that there is room for, in all address spaces together."""
        return self._memory.capacity

    @property
    def generation(self) -> int:
        """Generation of the address space that the rows are for."""
        return self._generation

    @property
    def evictions(self) -> int:
        """Rows that had to make room for others."""
        return self._memory.evictions

    def __len__(self) -> int:
        """Rows in all address spaces together."""
        return self._memory.count()

    def insert(self, addresses: U64, rows: U64, generation: int) -> bool:
        """Adds rows; False, without adding any, if they are for another generation."""
        with self._memory.lock:
            if generation != self._generation:
                return False
            self._memory.insert(addresses, rows, self._tag)
            return True

    def renew(self, generation: int, starts: U64, ends: U64) -> None:
        """Makes the rows those of another generation: what is mapped has changed.

        Only addresses in ``starts[n] <= a < ends[n]``, sorted, mean what they did before;
        the others' rows are dropped.
        """
        with self._memory.lock:
            tag = self._memory.new_tag(self._tag)
            self._memory.retag(self._tag, tag, starts, ends)
            self._generation, self._tag = generation, tag
            self._publish(generation, tag)

    def close(self) -> None:
        """Drops its rows."""
        with self._memory.lock:
            self._memory.release_tag(self._tag)
