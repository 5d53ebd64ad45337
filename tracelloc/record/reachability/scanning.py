"""Copies a process's memory piece by piece, and scans it for pointers to blocks."""

from collections.abc import Callable
from typing import Final

import numpy as np

from tracelloc.record.heapwalk.arenas import WalkedHeap
from tracelloc.record.heapwalk.ranges import are_in_use
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.roots import DEAD, QUIET, ROOT, MemoryKinds
from tracelloc.record.reachability.wordlog import LoggedPiece, WordLog, searched_areas

_ANYWHERE: Final = 8  # An address at which no memory can be: of words that are not in memory
_PIECE_BYTES: Final = 1 << 20  # Bytes read at once: the target's mappings can't change meanwhile


class MemoryScanner:
    """Scans one process's memory for pointers, and marks the blocks that they lead to."""

    def __init__(
        self,
        memory: RemoteMemory,
        marks: BlockBits,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        others: WalkedHeap | None = None,
    ) -> None:
        """``marks``: where pointers are recorded. ``may_go_on``: called for each MiB.

        ``others``: the whole heap, if ``marks`` has only some of its blocks. Pointers in the other
        blocks count then.
        """
        self.marks = marks
        self._memory = memory
        self._may_go_on = may_go_on
        self._others = others
        self._words = np.empty(_PIECE_BYTES // 8 + 1, np.uint64)

    def scan(self, start: int, end: int, *, is_code: bool, are_roots: bool = True) -> bool:
        """Scans resident memory; pointers in code need not be aligned.

        ``are_roots``: see ``BlockBits.scan``. Returns False if ``may_go_on`` did. Raises
        TargetError, PrivilegeError.
        """
        for address in range(start, end, _PIECE_BYTES):
            if not self._may_go_on():
                return False
            words = self._read(address, end)
            for shift in range(8 if is_code else 1):
                shifted = self._words.view(np.uint8)[shift : shift + words.nbytes]
                self.marks.scan(shifted.view(np.uint64), address, are_roots)
        return True

    def _read(self, address: int, end: int) -> U64:
        piece = np.array([[address, min(_PIECE_BYTES, end - address)]], np.uint64)
        return self._words[: self._memory.fetch(piece, self._words) // 8]

    def mark(self, words: U64) -> None:
        """Marks the blocks that words from outside memory, such as registers, point to."""
        self.marks.scan(np.ascontiguousarray(words), _ANYWHERE)

    def scan_all(self, kinds: MemoryKinds, log: WordLog | None = None) -> bool:
        """Scans all resident memory that is not dead. Returns False if ``may_go_on`` did.

        ``log``: words of memory that was read before, which is not read again.
        """
        areas = list(searched_areas(self._memory.process.maps_text()))
        runs: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for number, first, last in self._memory.resident_runs(
            (area[:2] for area in areas), self._may_go_on
        ):
            runs[areas[number].is_code].append((first, last))
        unread = kinds if log is None else kinds.without([piece[:2] for piece in log.pieces])
        parts = [
            (*part, is_code)
            for is_code, some in ((False, unread), (True, kinds))
            for part in some.split(runs[is_code])
        ]
        # With roots first, few pointers between blocks must be stored.
        parts.sort(key=lambda part: part[2])
        for start, end, kind, is_code in parts:
            if kind == QUIET and self._others is not None and log is not None and not is_code:
                is_scanned = self._scan_logged(start, end, log)
            else:
                is_scanned = kind == DEAD or self.scan(
                    start, end, is_code=is_code, are_roots=kind == ROOT or self._others is not None
                )
            if not is_scanned:
                return False
        for piece in [] if log is None else log.pieces:
            for start, end, kind in kinds.split([(piece.start, piece.end)]):
                self._follow(piece, start, end, kind)
        return self._may_go_on()

    def _scan_logged(self, start: int, end: int, log: WordLog) -> bool:
        for address in range(start, end, _PIECE_BYTES):
            if not self._may_go_on():
                return False
            piece = log.pack(self._read(address, end), address)
            self._follow(piece, piece.start, piece.end, QUIET)
        return True

    def _follow(self, piece: LoggedPiece, start: int, end: int, kind: int) -> None:
        """Marks the blocks that the logged words of a part of a piece, of one kind, point to."""
        if kind == DEAD:
            return
        words = piece.part(start, end)
        if kind == QUIET and self._others is not None:
            words = words[are_in_use(self._others, piece.addresses(words))]
            kind = ROOT
        self.marks.scan_packed(words, piece.start, kind == ROOT)
