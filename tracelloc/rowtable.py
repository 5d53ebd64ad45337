"""The probes' rows, in memory that both sides share (``struct row_set``, probes/maps.h).

A key is the address of the byte before a return address, with the generation of the
address space above it; it may lie in any of the four ways of its set. The probes may read
at any moment: a way is first emptied, then gets its row, then its key. On the processors
that we run on, stores are seen in the order in which they are made.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import GENERATION_SHIFT, ROW_WAYS

U64 = npt.NDArray[np.uint64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_ADDRESS_MASK: Final = np.uint64((1 << GENERATION_SHIFT) - 1)
_SHIFT: Final = np.uint64(GENERATION_SHIFT)


class RowTable:
    """Rows by address. Safe to use from several threads."""

    def __init__(self, sets: npt.NDArray[Any]) -> None:
        """``sets``: an array of ``abi.ROW_SET_DTYPE``, a power of two of them."""
        self._keys: U64 = sets["keys"]
        self._rows: U64 = sets["rows"]
        self._shift = np.uint64(64 - (len(sets) - 1).bit_length())
        self._lock = threading.Lock()
        self._generation = np.uint64(0)
        self._victim = 0
        self.evictions = 0
        """Rows that had to make room for others."""

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        return int(self._keys.size)

    @property
    def generation(self) -> int:
        """Of the address space that the rows are for."""
        return int(self._generation)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._keys))

    def insert(self, addresses: U64, rows: U64, generation: int) -> bool:
        """Adds rows; False, without adding any, if they are for another generation."""
        with self._lock:
            if generation != int(self._generation):
                return False
            keys = addresses & _ADDRESS_MASK | self._generation << _SHIFT
            sets = (addresses * _MULTIPLIER >> self._shift).astype(np.intp)
            order = np.argsort(sets, kind="stable")
            keys, rows, sets = keys[order], rows[order], sets[order]
            # One row per set and turn: two that share a set must not choose the same way.
            while len(keys):
                first = np.ones(len(sets), np.bool_)
                np.not_equal(sets[1:], sets[:-1], out=first[1:])
                self._put(keys[first], rows[first], sets[first])
                keys, rows, sets = keys[~first], rows[~first], sets[~first]
            return True

    def _put(self, keys: U64, rows: U64, sets: npt.NDArray[np.intp]) -> None:
        there = self._keys[sets]
        same = there == keys[:, None]
        empty = there == 0
        way = np.where(same.any(1), same.argmax(1), empty.argmax(1))
        full = ~(same.any(1) | empty.any(1))
        self._victim = (self._victim + 1) % ROW_WAYS
        way[full] = self._victim
        self.evictions += int(np.count_nonzero(full))
        self._keys[sets, way] = 0
        self._rows[sets, way] = rows
        self._keys[sets, way] = keys

    def renew(self, generation: int, starts: U64, ends: U64) -> None:
        """Makes the rows those of another generation: what is mapped has changed.

        Only addresses in ``starts[n] <= a < ends[n]``, sorted, mean what they did before;
        the others' rows are dropped.
        """
        with self._lock:
            addresses = self._keys & _ADDRESS_MASK
            kept = np.zeros(addresses.shape, np.bool_)
            if len(starts):
                at = np.searchsorted(starts, addresses.ravel(), side="right") - 1
                inside = (at >= 0) & (addresses.ravel() < ends[np.maximum(at, 0)])
                kept = inside.reshape(addresses.shape) & (self._keys != 0)
            self._generation = np.uint64(generation)
            self._keys[...] = np.where(kept, addresses | self._generation << _SHIFT, 0)
