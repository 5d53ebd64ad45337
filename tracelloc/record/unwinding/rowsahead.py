"""Makes unwind rows before a stack needs them, on a separate thread.

The mappings are read again for each file, so that libraries loaded meanwhile are not forgotten.
Small files come first, so that processes do not wait long for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable
from typing import Final, TypeGuard

import numpy as np

from tracelloc.model.codefiles import Mapping, Unresolved
from tracelloc.model.figures import U64
from tracelloc.record.kernel.rowtable import RowTable
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import AddressMap
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.worker.client import ROW_WORKER, FileReadError
from tracelloc.record.worker.unwindtables import UnwindTables
from tracelloc.system.invoker import Invoker
from tracelloc.system.safefiles.writing import CacheDirectory

RowsOf = Callable[[Module, UnwindTables], tuple[U64, U64]]

# The table is filled up to this fraction (1/n) beforehand: of a set's four ways, two are then taken
# on average, and one row in 26 is evicted.
_SHARE: Final = 2
# Most call sites of a file for which all rows are made; a second's work. Chromium has more.
_MOST_SITES: Final = 1 << 20
# For mappings of at least this size, the rows that earlier runs needed are made first.
_LARGE_BYTES: Final = 8 << 20
_NO_ROWS: Final = np.empty(0, np.uint64), np.empty(0, np.uint64)

_DIGEST_BYTES: Final = 16
_MOST_KEPT: Final = 1 << 16  # Per file: 512 KiB
_MOST_FILES: Final = 64  # The least recently used one is dropped for another: 32 MiB at most
_BUILD_ID: Final = re.compile(r"[0-9a-f]{8,128}")


class SiteMemory:
    """Call sites of large files that stacks pass, on disk by build ID; none on any error.

    Only call sites are kept. Their rows are made from the file's own call-frame information each
    time, so that a wrong cache file or a forged build ID costs some useless rows and nothing else.
    A file holds a digest (BLAKE2b, 16 bytes), then the file addresses: 64 bits each, little-endian,
    ascending.
    """

    def __init__(self, who: Invoker) -> None:
        self._files = CacheDirectory(who, "call-sites", ".sites", _MOST_FILES)

    def recall(self, build_id: str | None) -> U64:
        """Returns the remembered call sites of a file, ascending; often none."""
        if _is_name(build_id):
            with contextlib.suppress(OSError):
                content = self._files.recall(build_id, _DIGEST_BYTES + 8 * _MOST_KEPT)
                digest, sites = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                if digest == _digest(sites) and len(sites) % 8 == 0:
                    return np.frombuffer(sites, "<u8").astype(np.uint64)
        return _NO_ROWS[0]

    def remember(self, build_id: str | None, sites: U64) -> None:
        """Stores call sites of a file; if there are too many, new ones take precedence."""
        if not _is_name(build_id) or not len(sites):
            return
        new = np.unique(sites)[:_MOST_KEPT]
        old = np.setdiff1d(self.recall(build_id), new, assume_unique=True)
        content = np.sort(np.append(new, old[: _MOST_KEPT - len(new)])).astype("<u8").tobytes()
        self._files.remember(build_id, [_digest(content), content])


def _is_name(build_id: str | None) -> TypeGuard[str]:
    return build_id is not None and _BUILD_ID.fullmatch(build_id) is not None


def _digest(sites: bytes) -> bytes:
    return hashlib.blake2b(sites, digest_size=_DIGEST_BYTES).digest()


class RowsAhead:
    """Makes unwind rows for mapped code in advance. Thread safe, except for the pump's methods."""

    def __init__(self, space: AddressSpace, table: RowTable, memory: SiteMemory) -> None:
        """``memory``: the call sites in large files that stacks of earlier runs passed."""
        self._space, self._table, self._memory = space, table, memory
        # Guards everything below except `_met`, which only the pump thread uses
        self._changed = threading.Condition()
        self._maps = AddressMap([])
        self._made: set[Mapping] = set()  # Mappings that have their rows, or are getting them now
        self._recalled: set[Mapping] = set()  # Large ones with the rows that earlier runs needed
        self._supplied: set[Mapping] = set()  # With the rows that earlier programs' stacks passed
        self._whole = False  # Whether mappings in `_supplied` get all their rows as well
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._large: set[int] = set()  # Modules with too many call sites for making all their rows
        self._met: dict[int, list[int]] = {}  # Sites without a row that stacks passed, by module

    def fork(self, space: AddressSpace, table: RowTable) -> RowsAhead:
        """Returns a maker of rows for a copy of the address space."""
        child = RowsAhead(space, table, self._memory)
        with self._changed:
            child._maps, child._made = self._maps, set(self._made)
            child._recalled, child._supplied = set(self._recalled), set(self._supplied)
        return child

    def begin_image(self) -> None:
        """Resets after an exec: no existing row is valid any more."""
        self.renew(AddressMap([]))
        with self._changed:
            self._whole = False

    def renew(self, maps: AddressMap) -> None:
        """Takes over the current code mappings; unchanged mappings keep their rows."""
        there = set(maps.mappings)
        with self._changed:
            self._maps = maps
            for known in (self._made, self._recalled, self._supplied):
                known.intersection_update(there)

    # Work in the background.

    def begin(self, *, whole: bool) -> None:
        """Begins making rows; unless ``whole``, skips files that earlier programs had mapped."""
        with self._changed:
            self._whole |= whole
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._work, name="rows", daemon=True)
                self._thread.start()

    def await_all(self, timeout_s: float | None = None) -> None:
        """Waits until no row is left to make, or until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def stop(self) -> None:
        """Ends making rows, after the current file."""
        with self._changed:
            self._stopped = True
        self.await_all()

    @property
    def has_more(self) -> bool:
        """Whether files of earlier programs still lack some rows."""
        with self._changed:
            return not self._supplied <= self._made

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                try:
                    self.make(*job)
                except FileReadError as error:
                    if (module := self._space.module_of(job[0])) is not None:
                        module.elf.troubles.append(f"its unwind tables can't be read ({error})")
        finally:
            ROW_WORKER.end_after_answer()
            self._note_end()

    def _note_end(self) -> None:
        with self._changed:
            if self._thread is threading.current_thread():
                self._thread = None
                self._changed.notify_all()

    def _next(self) -> tuple[Mapping, RowsOf] | None:
        """Returns the next mapping to make rows for, and how; None ends the thread."""
        with self._changed:
            done = self._made if self._whole else self._made | self._supplied
            left = [m for m in self._maps.mappings if m not in done]
            if not left or self._stopped:
                # At once: later mappings are for another thread.
                self._note_end()
                return None
            for mapping in left:
                if mapping.end - mapping.start >= _LARGE_BYTES and mapping not in self._recalled:
                    self._recalled.add(mapping)
                    return mapping, self._remembered_rows
            mapping = min(left, key=lambda m: m.end - m.start)
            self._made.add(mapping)
            return mapping, self._all_rows

    def make(self, mapping: Mapping, rows_of: RowsOf) -> None:
        """Makes rows of a mapping; if room is short, only the rows that earlier runs needed."""
        generation = self._table.generation
        sites, rows = self._rows_of(mapping, rows_of)
        if not 0 < len(sites) <= self._table.capacity // _SHARE - len(self._table):
            if (module := self._space.module_of(mapping)) is not None:
                self._large.add(id(module))
            sites, rows = self._rows_of(mapping, self._remembered_rows)
        if len(sites) and not self._table.insert(sites, rows, generation):
            # The mappings have changed; this one may still exist.
            with self._changed:
                self._made.discard(mapping)
                self._recalled.discard(mapping)

    def _rows_of(self, mapping: Mapping, rows_of: RowsOf) -> tuple[U64, U64]:
        place = self._space.place(mapping.start)
        if isinstance(place, Unresolved) or place.module is None:
            return _NO_ROWS
        tables = self._space.files.tables(place.module)
        start = place.module.elf.address_of(place.file_offset)
        if tables is None or start is None:
            return _NO_ROWS
        sites, rows = rows_of(place.module, tables)
        first, size = np.uint64(start), np.uint64(mapping.end - mapping.start)
        inside = (sites >= first) & (sites < first + size)
        return sites[inside] - first + np.uint64(mapping.start), rows[inside]

    def _all_rows(self, module: Module, tables: UnwindTables) -> tuple[U64, U64]:
        sites, rows = tables.all_rows(_MOST_SITES)
        probed = (module.elf.address_of(offset) for offset in sorted(module.elf.usdt_offsets))
        more = np.array([address for address in probed if address is not None], np.uint64)
        if not len(more):
            return sites, rows
        return np.append(sites, more), np.append(rows, tables.rows(more, ahead=True))

    def _remembered_rows(self, module: Module, tables: UnwindTables) -> tuple[U64, U64]:
        sites = self._memory.recall(module.elf.build_id)
        return (sites, tables.rows(sites, ahead=True)) if len(sites) else _NO_ROWS

    # Call sites that stacks passed: for the pump thread.

    def note_met(self, module: Module, address: int) -> None:
        """Records a call site without a row that a stack passed, as a file address."""
        self._met.setdefault(id(module), []).append(address)

    def remember(self) -> None:
        """Saves the call sites that stacks passed in large files, for the next run."""
        for module in self._space.modules:
            if id(module) in self._large:
                met = np.array(self._met.get(id(module), ()), np.uint64)
                self._memory.remember(module.elf.build_id, met)

    def note_passed(self, frames: U64) -> None:
        """Records the sorted return addresses in this program's stacks, for other programs."""
        sites = frames - np.uint64(1)
        bounds = np.array([(m.start, m.end) for m in self._maps.mappings], np.uint64)
        inside = np.searchsorted(sites, bounds).reshape(-1, 2).tolist()
        for mapping, (first, last) in zip(self._maps.mappings, inside, strict=True):
            if first == last and mapping in self._supplied:
                continue
            module = self._space.module_of(mapping)
            start = module.elf.address_of(mapping.offset) if module is not None else None
            tables = self._space.files.tables(module) if module is not None else None
            if tables is not None and start is not None:
                tables.note_passed(sites[first:last] - np.uint64(mapping.start) + np.uint64(start))

    def _tables_of(self, mapping: Mapping) -> UnwindTables | None:
        module = self._space.module_of(mapping)
        return None if module is None else self._space.files.tables(module)

    def supply_passed(self) -> bool:
        """Inserts rows that earlier programs' stacks passed. Returns whether files are unknown."""
        any_unknown = False
        for mapping in self._maps.mappings:
            known = mapping in self._supplied or mapping in self._made
            if known or (tables := self._tables_of(mapping)) is None:
                continue
            if tables.passed_rows is None:
                any_unknown = True
                continue
            sites, rows = self._rows_of(mapping, lambda _, known: known.passed_rows or _NO_ROWS)
            self._table.insert(sites, rows, self._table.generation)
            with self._changed:
                self._supplied.add(mapping)
        return any_unknown
