"""Outstanding blocks as columns: copies of what the live table holds at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
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
        """Some rows: a copy, of a slice a view."""
        return Blocks(*(getattr(self, name)[rows] for name, _ in _COLUMNS))

    def largest(self, n: int) -> Blocks:
        """The ``n`` largest in their order; of equal ones the older, then the lower first."""
        return self.select(first_rows(n, ~self.size, self.birth_ns, self.address))

    @classmethod
    def concatenate(cls, parts: list[Blocks]) -> Blocks:
        """All rows of the parts, in their order."""
        if not parts:
            return cls.empty()
        return cls._of(
            [np.concatenate([getattr(part, name) for part in parts]) for name, _ in _COLUMNS]
        )


def first_rows(n: int, main: U64, second: U64, third: U64) -> Rows:
    """The rows of the n smallest, in order, without sorting all."""
    rows = np.arange(len(main))
    if 0 < n < len(main):
        rows = np.flatnonzero(main <= np.partition(main, n - 1)[n - 1])
    return rows[np.lexsort((third[rows], second[rows], main[rows]))][: max(n, 0)]
