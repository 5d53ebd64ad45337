"""Outstanding blocks as columns: copies of the live table's blocks at one time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import WEIGHT_BITS, WEIGHT_MANTISSA_BITS

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

_COLUMNS: Final = (
    ("address", np.uint64),
    ("size", np.uint64),
    ("birth_ns", np.uint64),
    ("stack", np.uint32),
    ("tid", np.uint32),
)


@dataclass(slots=True)
class Blocks:
    """Columns of equal length: one block per row.

    ``size`` in bytes, ``birth_ns`` on CLOCK_MONOTONIC, ``stack`` an index of
    ``stacks.Stacks``, ``tid`` the thread that allocated.
    """

    address: U64
    size: U64
    birth_ns: U64
    stack: U32
    tid: U32
    weight: F64 | None = None
    """How many blocks each one stands for, if the program has reported that."""

    @classmethod
    def empty(cls, rows: int = 0) -> Blocks:
        """Uninitialized columns of ``rows`` rows."""
        return cls._of([np.empty(rows, dtype) for _, dtype in _COLUMNS])

    @classmethod
    def _of(cls, columns: list[npt.NDArray[Any]]) -> Blocks:
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.address)

    def columns(self) -> Iterator[npt.NDArray[Any]]:
        """Yields the columns in their order."""
        return (getattr(self, name) for name, _ in _COLUMNS)

    def select(self, rows: Mask | Rows | slice) -> Blocks:
        """Some rows, as a copy; a view for a slice."""
        found = self._of([getattr(self, name)[rows] for name, _ in _COLUMNS])
        found.weight = None if self.weight is None else self.weight[rows]
        return found

    def weighed(self) -> Blocks:
        """Splits ``size`` as in events of programs that report their own samples; adds weights."""
        size, weight = weighed(self.size)
        return replace(self, size=size, weight=weight)

    def largest(self, n: int) -> Blocks:
        """The ``n`` largest, in order; of equal ones, the older, then the lower address first."""
        return self.select(first_rows(n, ~self.size, self.birth_ns, self.address))

    @classmethod
    def concatenate(cls, parts: list[Blocks]) -> Blocks:
        """All rows of the parts, in their order."""
        if not parts:
            return cls.empty()
        whole = cls._of(
            [np.concatenate([getattr(part, name) for part in parts]) for name, _ in _COLUMNS]
        )
        weights = [part.weight for part in parts if part.weight is not None]
        if weights:
            # All parts have weights or none, except parts without blocks.
            whole.weight = np.concatenate(weights)
        return whole


def first_rows(n: int, main: U64, second: U64, third: U64) -> Rows:
    """The rows of the n smallest values, in order, without sorting all."""
    rows = np.arange(len(main))
    if 0 < n < len(main):
        rows = np.flatnonzero(main <= np.partition(main, n - 1)[n - 1])
    return rows[np.lexsort((third[rows], second[rows], main[rows]))][: max(n, 0)]


def weighed(coded: U64) -> tuple[U64, F64]:
    """(sizes in bytes, how many blocks each stands for): see ``WEIGHT_`` in ``probes/event.h``."""
    code = (coded & np.uint64((1 << WEIGHT_BITS) - 1)).astype(np.int64)
    mantissa = code & (1 << WEIGHT_MANTISSA_BITS) - 1
    exponent = (code >> WEIGHT_MANTISSA_BITS).astype(np.int32)
    weight = np.ldexp(1 + mantissa / (1 << WEIGHT_MANTISSA_BITS), exponent)
    return coded >> np.uint64(WEIGHT_BITS), weight
