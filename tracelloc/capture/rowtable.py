"""The probes' rows, in memory that both sides share (``struct row_set``, probes/maps.h).

A key is the address of the byte before a return address, with a tag above it that says
which address space it is of, and since which change of what is mapped there. It may lie
in any of the four ways of its set. The probes may read at any moment: a way is first
emptied, then gets its row, then its key. On the processors that we run on, stores are
seen in the order in which they are made.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import KEY_TAG_SHIFT, ROW_WAYS, SALT_BITS, TAG_BITS

U64 = npt.NDArray[np.uint64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_ADDRESS_MASK: Final = np.uint64((1 << KEY_TAG_SHIFT) - 1)
_SHIFT: Final = np.uint64(KEY_TAG_SHIFT)
_TAGS: Final = 1 << TAG_BITS
_SALTS: Final = 1 << SALT_BITS
_PER_SALT: Final = _TAGS // _SALTS
_HASHED: Final = np.uint64((1 << KEY_TAG_SHIFT + SALT_BITS) - 1)
"""The part of a key that its place depends on: the address and the tag's salt. Without the salt,
programs that lie at fixed addresses would all want the same places."""


class RowMemory:
    """The rows of all address spaces, and their tags. Under its lock."""

    def __init__(self, sets: npt.NDArray[Any]) -> None:
        """``sets``: an array of ``abi.ROW_SET_DTYPE``, a power of two of them."""
        self.lock = threading.Lock()
        self.evictions = 0
        """Rows that had to make room for others."""
        self._keys: U64 = sets["keys"]
        self._rows: U64 = sets["rows"]
        self._shift = np.uint64(64 - (len(sets) - 1).bit_length())
        self._victim = 0
        self._users: Counter[int] = Counter()
        self._rows_under: Counter[int] = Counter()
        """By tag in use: how many rows there are."""
        self._is_free = np.zeros(_TAGS, np.bool_)
        """By tag: whether ways under it count as empty. Nobody looks for what they hold."""
        self._is_free[0] = True
        self._salt = 0
        self._last_tags = list(range(_SALTS))

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        return int(self._keys.size)

    def count(self) -> int:
        """Rows that are there."""
        return self._rows_under.total()

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
            del self._rows_under[tag]
            self._is_free[tag] = True

    def insert(self, addresses: U64, rows: U64, tag: int) -> None:
        """Adds rows."""
        keys = addresses & _ADDRESS_MASK | np.uint64(tag) << _SHIFT
        sets = ((keys & _HASHED) * _MULTIPLIER >> self._shift).astype(np.intp)
        order = np.argsort(sets, kind="stable")
        keys, rows, sets = keys[order], rows[order], sets[order]
        # One row per set and turn: two that share a set must not choose the same way.
        while len(keys):
            first = np.ones(len(sets), np.bool_)
            np.not_equal(sets[1:], sets[:-1], out=first[1:])
            self._put(keys[first], rows[first], sets[first], tag)
            keys, rows, sets = keys[~first], rows[~first], sets[~first]

    def _put(self, keys: U64, rows: U64, sets: npt.NDArray[np.intp], tag: int) -> None:
        there = self._keys[sets]
        same = there == keys[:, None]
        empty = self._is_free.take(there >> _SHIFT)
        is_new = ~same.any(1)
        way = np.where(is_new, empty.argmax(1), same.argmax(1))
        full = is_new & ~empty.any(1)
        self._victim = (self._victim + 1) % ROW_WAYS
        way[full] = self._victim
        evicted = there[full, self._victim] >> _SHIFT
        self._rows_under.subtract(evicted.tolist())
        self._rows_under[tag] += int(np.count_nonzero(is_new))
        self.evictions += len(evicted)
        self._keys[sets, way] = 0
        self._rows[sets, way] = rows
        self._keys[sets, way] = keys

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
        at = np.flatnonzero(self._keys >> _SHIFT == np.uint64(old))
        addresses = self._keys.flat[at] & _ADDRESS_MASK
        mapping = np.searchsorted(starts, addresses, side="right") - 1
        kept = (mapping >= 0) & (addresses < ends[np.maximum(mapping, 0)])
        if self._users[old] > 1:
            rows = self._rows.flat[at[kept]]
            self.release_tag(old)
            self.insert(addresses[kept], rows, new)
        else:
            del self._users[old]
            del self._rows_under[old]
            self._rows_under[new] = int(np.count_nonzero(kept))
            moved = addresses | np.uint64(new) << _SHIFT
            self._keys.flat[at] = np.where(kept, moved, np.uint64(0))


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
