"""The probes' unwind rows, in memory shared with the kernel (``struct row_set``, probes/maps.h).

A key is the address of the byte before a return address, with a tag above it, which identifies
the address space. A key may be in any of the four ways of its set.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.figures import U64
from tracelloc.record.abi import KEY_TAG_SHIFT, ROW_LASTS, SALT_BITS, TAG_BITS
from tracelloc.record.kernel.rowsets import keep_rows, put_rows

_ADDRESS_MASK: Final = np.uint64((1 << KEY_TAG_SHIFT) - 1)
_SHIFT: Final = np.uint64(KEY_TAG_SHIFT)
_TAGS: Final = 1 << TAG_BITS
_SALTS: Final = 1 << SALT_BITS
_NO_ADDRESSES: Final = np.empty(0, np.uint64)
_PER_SALT: Final = _TAGS // _SALTS
# The bits of a key that determine its set: the address and the tag's salt. Without the salt,
# programs at the same fixed addresses would compete for the same sets.
_HASHED: Final = (1 << KEY_TAG_SHIFT + SALT_BITS) - 1


def _are_inside(addresses: U64, starts: U64, ends: U64) -> npt.NDArray[np.bool_]:
    """Returns a mask of the addresses in ``starts[n] <= a < ends[n]``, sorted, not empty."""
    at = np.searchsorted(starts, addresses, side="right") - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (addresses < ends[at])
    return found


class RowMemory:
    """The unwind rows of all address spaces, and their tags. Callers hold ``lock``."""

    def __init__(self, sets: npt.NDArray[Any]) -> None:
        """``sets`` is an array of ``abi.ROW_SET_DTYPE``; its length is a power of two."""
        self.lock = threading.Lock()
        self.evictions = 0  # Rows that were evicted for others
        # Whether all rows are made of files of which earlier programs needed some.
        self.is_filled = True
        self.own = sets
        self._sets: U64 = sets.view(np.uint64).reshape(len(sets), -1)
        self._keys: U64 = sets["keys"]
        self._rows: U64 = sets["rows"]
        self._users: Counter[int] = Counter()
        self._rows_under = np.zeros(_TAGS, np.int64)  # Number of rows, by tag in use
        # By tag: whether its ways count as empty. No lookup reads them.
        self._is_free = np.zeros(_TAGS, np.bool_)
        self._is_free[0] = True
        self._salt = 0
        self._last_tags = list(range(_SALTS))

    def move(self, sets: npt.NDArray[Any], *, copies: bool = True) -> None:
        """Moves all rows to an array of as many sets, where walks look for them.

        An array other than ``own`` has no rows yet. ``copies``: otherwise the rows are outdated.
        """
        with self.lock:
            before, self._sets = self._sets, sets.view(np.uint64).reshape(len(sets), -1)
            if copies and sets is self.own:
                self._sets[:] = before
            elif copies:  # no page is touched in vain
                first, second, third, fourth = self._keys.T
                used = np.flatnonzero(first | second | third | fourth)
                self._sets[used] = before[used]
            self._keys, self._rows = sets["keys"], sets["rows"]

    @property
    def capacity(self) -> int:
        """Most unwind rows that fit."""
        return int(self._keys.size)

    def count(self) -> int:
        """Returns the number of unwind rows, of all address spaces."""
        return int(self._rows_under.sum())

    def new_tag(self, like: int | None = None) -> int:
        """Returns an unused tag, not 0. ``like``: a tag under which rows have the same sets."""
        if like is None:
            self._salt = (self._salt + 1) % _SALTS
        salt = self._salt if like is None else like % _SALTS
        # Those unused for longest come first: a probe may still be looking for recent ones.
        last = self._last_tags[salt]
        tags = [(last + n * _SALTS) % _TAGS for n in range(1, _PER_SALT + 1)]
        while all(self._is_free[t] or t in self._users for t in tags):
            self._keys[self._is_free[self._keys >> _SHIFT]] = 0
            self._is_free[1:] = False
        tag = next(t for t in tags if not (self._is_free[t] or t in self._users))
        self._last_tags[salt] = tag
        self._users[tag] = 1
        return tag

    def share_tag(self, tag: int) -> int:
        """Adds a user to a tag: an address space with the same code at the same addresses."""
        self._users[tag] += 1
        return tag

    def release_tag(self, tag: int) -> None:
        """Removes a user of a tag; its rows are dropped with the last user."""
        self._users[tag] -= 1
        if not self._users[tag]:
            del self._users[tag]
            self._rows_under[tag] = 0
            self._is_free[tag] = True

    def insert(self, addresses: U64, rows: U64, tag: int) -> None:
        """Adds unwind rows of some addresses under a tag; may evict other rows."""
        free, rows_under, victim = self._is_free.view(np.uint8), self._rows_under, self.evictions
        self.evictions += put_rows(
            self._sets, addresses, rows, tag, _HASHED, free, rows_under, victim
        )

    def is_shared(self, tag: int) -> bool:
        return self._users[tag] > 1

    def keep(self, tag: int, starts: U64, ends: U64) -> int:
        """Drops the rows of a tag, except for those of addresses that mean the same as before.

        Those are in ``starts[n] <= a < ends[n]``, sorted. Returns the rows' tag: another one if
        other address spaces need the rows that are dropped.
        """
        if len(starts) and not self.is_shared(tag):
            self._rows_under[tag] = keep_rows(self._sets, tag, starts, ends)
            return tag
        new = self.new_tag(tag)
        if len(starts):
            at = np.flatnonzero(self._keys >> _SHIFT == np.uint64(tag))
            addresses = self._keys.flat[at] & _ADDRESS_MASK
            kept = _are_inside(addresses, starts, ends)
            self.insert(addresses[kept], self._rows.flat[at[kept]], new)
        self.release_tag(tag)
        return new


class RowTable:
    """The unwind rows of one address space, by address. Thread safe."""

    def __init__(
        self,
        memory: RowMemory,
        publish: Callable[[int, int], None],
        generation: int = 0,
        like: RowTable | None = None,
    ) -> None:
        """``publish(generation, tag)`` tells the probes the valid keys. ``like``: a parent's."""
        self._memory, self._publish, self.generation = memory, publish, generation
        # Address ranges of code that stays mapped as long as the program runs, sorted
        self._lasting: tuple[U64, U64] = (_NO_ADDRESSES,) * 2 if like is None else like._lasting
        with memory.lock:
            self._tag: int = memory.new_tag() if like is None else memory.share_tag(like._tag)
            publish(generation, self._tag)

    def fork(self, publish: Callable[[int, int], None], generation: int) -> RowTable:
        """Shares the rows with another address space, until either needs its own."""
        return RowTable(self._memory, publish, generation, self)

    @property
    def is_shared(self) -> bool:
        """Whether another address space shares the rows; no rows may be added then."""
        return self._memory.is_shared(self._tag)

    @property
    def capacity(self) -> int:
        return self._memory.capacity

    def __len__(self) -> int:
        return self._memory.count()

    def insert(self, addresses: U64, rows: U64, generation: int) -> bool:
        """Adds rows; returns False, without adding any, if they belong to another generation."""
        with self._memory.lock:
            if generation != self.generation:
                return False
            starts, ends = self._lasting
            if len(starts):
                rows = rows | _are_inside(addresses, starts, ends) * np.uint64(ROW_LASTS)
            self._memory.insert(addresses, rows, self._tag)
            return True

    def set_lasting(self, starts: U64, ends: U64) -> None:
        """Sets where code stays mapped as long as the program runs, for rows added from now on.

        Rows there, ``starts[n] <= a < ends[n]``, sorted, are valid while the mappings change.
        """
        with self._memory.lock:
            self._lasting = starts, ends

    def renew(self, generation: int, starts: U64, ends: U64) -> None:
        """Declares rows valid for another generation, after the mappings have changed.

        Rows of addresses outside ``starts[n] <= a < ends[n]``, sorted, are dropped.
        """
        with self._memory.lock:
            self._tag = self._memory.keep(self._tag, starts, ends)
            self.generation = generation
            self._publish(generation, self._tag)

    def close(self) -> None:
        with self._memory.lock:
            self._memory.release_tag(self._tag)
