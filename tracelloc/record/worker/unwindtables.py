"""Call-frame information of files, as read by workers, and unwinding of stacks by workers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.files.cfi.walk import Walk
from tracelloc.model.events import Miss
from tracelloc.model.figures import U64
from tracelloc.record.worker import client
from tracelloc.record.worker.client import AskedFile, FileHandle, FileReadError, FileWorker
from tracelloc.record.worker.codefilereader import CodeFileReader
from tracelloc.record.worker.symbolfilereader import CODE_DTYPE, KnownFiles, miss_dtype
from tracelloc.record.worker.targetfile import TargetFile

_MOST_REMEMBERED: Final = 1 << 16  # Most call sites remembered. A hot program needs a few thousand.
_MOST_PLACES: Final = 1 << 16  # Most addresses whose row is cached
_NOWHERE: Final = np.uint64((1 << 64) - 1)


class UnwindTables:
    """Unwind rows of a file, made by workers. Addresses are the file's own. Thread safe."""

    def __init__(self, elf: TargetFile) -> None:
        """Reads nothing yet. The caller still owns ``elf``."""
        self._elf = elf
        self._ahead = FileHandle(client.ROW_WORKER, elf.descriptor(), elf.path)
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
        """Returns all call sites and rows, or none if more than ``most``. Raises FileReadError."""
        with self._lock:
            if self._all_rows is None:
                *found, self.covered_share, trouble = self._ahead.ask(CodeFileReader.all_rows, most)
                self.trouble = trouble or self.trouble
                self._all_rows = found[0], found[1]
            return self._all_rows

    def rows(self, addresses: U64, *, ahead: bool = False) -> U64:
        """Returns rows; ``ahead``: the question must not delay others. Raises FileReadError."""
        file: FileHandle = self._ahead if ahead else self._elf
        rows, trouble = file.ask(CodeFileReader.rows, addresses)
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
        return self._at(address)[1]

    def row(self, address: int) -> int:
        return self._at(address)[0]

    def _at(self, address: int) -> tuple[int, bool]:
        found = self._places.get(address)
        if found is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            row, is_start, trouble = 0, False, None
            with suppress(FileReadError):
                row, is_start, trouble = self._elf.ask(CodeFileReader.at, address)
            self.trouble = trouble or self.trouble
            found = self._places[address] = row, is_start
        return found

    def close(self) -> None:
        """Makes the worker close its copy; the caller still owns the file."""
        self._ahead.close()


_MOST_AT_ONCE: Final = 64  # Most stacks per question: some megabytes


@dataclass(frozen=True, slots=True)
class FollowedStack:
    """The result of unwinding one stack."""

    walk: Walk
    met_unmapped: bool  # Whether the walk met an address where nothing is mapped


class StackWalker(AskedFile):
    """Unwinds stacks of one process by full rules, in a worker, from registers and memory.

    After stacks have ended the worker twice, it is not asked again.
    """

    def __init__(self, pid: int, worker: FileWorker = client.CODE_WORKER) -> None:
        super().__init__(worker, f"call stacks of process {pid} that the probes can't follow")
        self._code = np.empty(0, CODE_DTYPE)

    def renew(
        self, code: Iterable[tuple[int, int, int, int, int]], files: Iterable[AskedFile]
    ) -> None:
        """Sets the current mappings: rows of ``CODE_DTYPE``, by address, and their files."""
        self._code = np.array(list(code), CODE_DTYPE)
        self.beside = list(files)

    def fork(self, pid: int, generation: int) -> StackWalker:
        """Returns a walker for a copy of the address space, mapped since this generation."""
        child = StackWalker(pid)
        child._code, child.beside = self._code.copy(), self.beside
        child._code["since"] = generation
        return child

    def follow(
        self, stacks: Sequence[Miss], limit: int
    ) -> tuple[list[FollowedStack], dict[int, int]]:
        """Unwinds stacks. Returns results, and the rows made, by address. Raises FileReadError."""
        found: list[FollowedStack] = []
        rows: dict[int, int] = {}
        for first in range(0, len(stacks), _MOST_AT_ONCE):
            some = stacks[first : first + _MOST_AT_ONCE]
            heads = np.zeros(len(some), miss_dtype(native()))
            for number, each in enumerate(some):
                heads[number] = (
                    each.registers, each.generation, each.stack_address, each.stack_holes,
                    len(each.stack),
                )  # fmt: skip
            memory = b"".join(each.stack for each in some)
            walks, *new = self.ask(KnownFiles.stacks, limit, self._code, heads, memory)
            for frames, end, guessed, met_unmapped in walks:
                walk = Walk(tuple(frames.tolist()), end, guessed)
                found.append(FollowedStack(walk, met_unmapped))
            rows.update(zip(*(each.tolist() for each in new), strict=True))
        return found, rows
