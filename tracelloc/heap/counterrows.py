"""Rows of counters with a column per stack, copied on write between forks.

A row is created when something is first counted in it. Rows shared with a fork are read-only;
a writer makes a copy first.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.figures import I64

Indices = npt.NDArray[Any]

_LEAST_COLUMNS: Final = 64


class CounterRows:
    """A fixed number of counter rows, zero at first. Not thread safe."""

    def __init__(self, rows: int) -> None:
        self.columns = _LEAST_COLUMNS  # Number of columns; rows may be shorter, with implied zeros
        self._rows: list[I64 | None] = [None] * rows

    def __len__(self) -> int:
        return len(self._rows)

    def fork(self) -> CounterRows:
        """Returns a copy; the two share each row until one is written to."""
        child = CounterRows(0)
        child.columns = self.columns
        for row in self._rows:
            if row is not None:
                row.setflags(write=False)
        child._rows = self._rows.copy()
        return child

    def own(self, at: int) -> I64:
        """Returns a row as a writable array of full length; copies it first if a fork shares it."""
        row = self._rows[at]
        if row is None or len(row) < self.columns or not row.flags.writeable:
            grown = np.zeros(self.columns, np.int64)
            if row is not None:
                grown[: len(row)] = row
            row = self._rows[at] = grown
        return row

    def set(self, at: int, figures: I64) -> None:
        self._rows[at] = figures.copy()

    def fold(self, into: int, at: int) -> None:
        """Adds one row to another, and resets it to zero."""
        row, self._rows[at] = self._rows[at], None
        if row is not None:
            self.own(into)[: len(row)] += row

    def fold_lowest(self, into: int, at: int) -> None:
        """Keeps the lower figures of two rows, at least 0, in ``into``, and resets row ``at``."""
        row, self._rows[at] = self._rows[at], None
        kept = self._rows[into]
        if row is None or kept is None:
            self._rows[into] = None
        else:
            self._rows[into] = np.minimum(kept[: len(row)], row[: len(kept)])

    def gather(self, rows: Indices, columns: int) -> I64:
        """Returns a copy of some rows, up to ``columns`` columns."""
        found = np.zeros((len(rows), columns), np.int64)
        for into, at in zip(found, rows.tolist(), strict=True):
            row = self._rows[at]
            if row is not None:
                into[: len(row)] = row[:columns]
        return found
