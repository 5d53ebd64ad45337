"""Copies a process's memory piece by piece, and scans it for pointers to blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.reachability.areas import searched_areas
from tracelloc.record.reachability.marking import Marks
from tracelloc.record.reachability.roots import DEAD, ROOT, MemoryKinds

_ANYWHERE: Final = 8
"""An address at which no memory can be: of words that are not in memory."""
_PIECE_BYTES: Final = 1 << 20
"""Bytes read at once: the target's mappings can't change meanwhile."""


class MemoryScanner:
    """Marks blocks by the pointers in one process's memory."""

    def __init__(
        self,
        memory: RemoteMemory,
        starts: U64,
        ends: U64,
        most_edges: int,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Blocks by address; ``most_edges``: see ``Marks``. ``may_go_on``: asked for each MiB."""
        self.marks = Marks(starts, ends, most_edges)
        self._count = len(starts)
        self._memory = memory
        self._may_go_on = may_go_on
        self._words = np.empty(_PIECE_BYTES // 8 + 1, np.uint64)

    def scan(self, start: int, end: int, *, is_code: bool, are_roots: bool = True) -> bool:
        """Scans resident memory; pointers in code need not be aligned.

        ``are_roots``: see ``Marks.scan``. Returns False as soon as it must not go on. Raises
        TargetError, PrivilegeError.
        """
        for address in range(start, end, _PIECE_BYTES):
            if not self._may_go_on():
                return False
            piece = np.array([[address, min(_PIECE_BYTES, end - address)]], np.uint64)
            size_bytes = self._memory.fetch(piece, self._words)
            for shift in range(8 if is_code else 1):
                shifted = self._words.view(np.uint8)[shift : shift + size_bytes // 8 * 8]
                self.marks.scan(shifted.view(np.uint64), address, are_roots)
        return True

    def mark(self, words: U64) -> None:
        """Marks the blocks that these words, which are not in memory, point to."""
        self.marks.scan(np.ascontiguousarray(words), _ANYWHERE)

    def scan_all(self, kinds: MemoryKinds) -> bool:
        """Scans all resident memory that is not dead; see ``scan``."""
        areas = list(searched_areas(self._memory.process.maps_text()))
        runs: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for number, first, last in self._memory.resident_runs(
            (area[:2] for area in areas), self._may_go_on
        ):
            runs[areas[number].is_code].append((first, last))
        parts = [(*part, is_code) for is_code in runs for part in kinds.split(runs[is_code])]
        # With roots first, few pointers between blocks must be stored.
        parts.sort(key=lambda part: part[2])
        return (
            all(
                kind == DEAD or self.scan(start, end, is_code=is_code, are_roots=kind == ROOT)
                for start, end, kind, is_code in parts
            )
            and self._may_go_on()
        )

    def finish(self) -> Mask:
        """Follows the pointers between blocks. Returns which blocks can be reached."""
        reachable = np.zeros(self._count, np.uint8)
        self.marks.finish(reachable)
        return reachable.view(np.bool_)
