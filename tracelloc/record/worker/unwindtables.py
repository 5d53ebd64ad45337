"""The call-frame information of one file, as read by workers. From any thread."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.record.worker.client import ROW_WORKER, FileHandle, FileReadError
from tracelloc.record.worker.readcode import ReadCode
from tracelloc.record.worker.targetfile import TargetFile

U64 = npt.NDArray[np.uint64]

_MOST_REMEMBERED: Final = 1 << 16  # Most call sites remembered. A hot program needs a few thousand.
_MOST_PLACES: Final = 1 << 16  # Most addresses whose row is cached
_NOWHERE: Final = np.uint64((1 << 64) - 1)


class UnwindTables:
    """Unwind rows of a file. Addresses are the file's own virtual ones."""

    def __init__(self, elf: TargetFile) -> None:
        """Reads nothing yet; the caller still owns ``elf``."""
        self._elf = elf
        self._ahead = FileHandle(ROW_WORKER, elf.descriptor(), elf.path)
        self._lock = threading.Lock()
        self._all_rows: tuple[U64, U64] | None = None
        self._places: dict[int, tuple[int, bool]] = {}
        # Call sites in stacks of ended programs, sorted, and their rows; None if no program that
        # had it mapped has ended yet.
        self.passed_rows: tuple[U64, U64] | None = None
        # Approximate share of the code with information, 0 to 1; None before `all_rows`
        self.covered_share: float | None = None
        self.trouble: str | None = None  # Why some of the file's information can't be read

    def all_rows(self, most: int) -> tuple[U64, U64]:
        """Returns all call sites and their rows; none if there are more than ``most``.

        Computed once. Raises FileReadError.
        """
        with self._lock:
            if self._all_rows is None:
                *found, self.covered_share, trouble = self._ahead.ask(ReadCode.all_rows, most)
                self.trouble = trouble or self.trouble
                self._all_rows = found[0], found[1]
            return self._all_rows

    def rows(self, addresses: U64, *, ahead: bool = False) -> U64:
        """Returns the rows of some addresses. Raises FileReadError.

        With ``ahead``, the question does not delay others.
        """
        file: FileHandle = self._ahead if ahead else self._elf
        rows, trouble = file.ask(ReadCode.rows, addresses)
        self.trouble = trouble or self.trouble
        return rows

    def note_passed(self, sites: U64) -> None:
        """Remembers distinct call sites that were in stacks of an ended program."""
        if self.passed_rows is None:
            self.passed_rows = np.empty(0, np.uint64), np.empty(0, np.uint64)
        known, rows = self.passed_rows
        at = np.searchsorted(known, sites)
        new = sites[np.append(known, _NOWHERE)[at] != sites]
        if len(new) and len(known) + len(new) <= _MOST_REMEMBERED:
            try:
                more = self.rows(new)
            except FileReadError:
                return
            sites, rows = np.append(known, new), np.append(rows, more)
            order = np.argsort(sites)
            self.passed_rows = sites[order], rows[order]

    def is_start(self, address: int) -> bool:
        """Returns whether a function with information begins at this address."""
        return self._at(address)[1]

    def row(self, address: int) -> int:
        """Returns the row of an address; 0 if unknown."""
        return self._at(address)[0]

    def _at(self, address: int) -> tuple[int, bool]:
        found = self._places.get(address)
        if found is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            try:
                row, is_start, trouble = self._elf.ask(ReadCode.at, address)
                found = row, is_start
                self.trouble = trouble or self.trouble
            except FileReadError:
                pass
            found = self._places[address] = found or (0, False)
        return found

    def close(self) -> None:
        """Makes the worker close its copy; the caller still owns the file."""
        self._ahead.close()
