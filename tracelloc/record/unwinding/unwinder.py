"""Makes rows for the probes to walk stacks without frame pointers, and finishes the other stacks.

The probes follow a stack by rows, one per call site (``probes/walk_rows.h``). Rows are made
beforehand as far as there is room (``rowsahead.py``). If a stack passes a call site without a
row, the probes send its registers and memory (a miss). The unwinder then finishes the stack
here by the full rules, exactly, and adds the row for the next time.

Rows are valid for the mappings for which they were made. Each time the dynamic linker or anything
else unmaps a library, the generation in their keys changes, and rows of code that is still mapped
move to the new one. Until then, only rows of code that is never unmapped are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.files.cfi.module import FALLBACK_ROW
from tracelloc.files.cfi.walk import End
from tracelloc.model.codefiles import Mapping, Unresolved
from tracelloc.model.events import Miss
from tracelloc.model.figures import U64
from tracelloc.model.stacks import Frames, StackFlag
from tracelloc.record.abi import REGION_SHIFT, region_keys
from tracelloc.record.kernel.rowtable import RowTable
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.codehistory import Shift, as_stored
from tracelloc.record.process.procfs import AddressMap
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.unwinding.rowsahead import RowsAhead
from tracelloc.record.worker.client import AskedFile, FileReadError
from tracelloc.record.worker.symbolfilereader import GENERATED, UNREADABLE
from tracelloc.record.worker.unwindtables import FollowedStack, StackWalker, UnwindTables

_MOST_REGIONS: Final = 1 << 14  # Most regions of generated code with a row: 1 GiB of code
_MOST_EARLIER: Final = 32  # Most earlier generations whose mappings are kept
_MOST_GENERATIONS: Final = 1 << 12  # Most of which a few numbers are kept
# Most addresses that are known to have rows. A hot program needs a few thousand.
_MOST_KNOWN: Final = 1 << 16

Loaded = frozenset[tuple[int, str]]  # Libraries that the loader has mapped, with base addresses
_FLAGS: Final = {
    End.OUTERMOST: StackFlag(0),
    End.LIMIT: StackFlag.TRUNCATED,
    End.OUTSIDE_COPY: StackFlag.SHORT_COPY,
    End.NO_MODULE: StackFlag.UNMAPPED,
    End.DAMAGED: StackFlag.BAD_CFI,
    End.UNKNOWN_REGISTER: StackFlag.BAD_CFI,
    End.NO_PROGRESS: StackFlag.BROKEN,
}


@dataclass(frozen=True, slots=True)
class FinishedStack:
    """A stack that the probes could not finish, and the unwinder has finished."""

    stack_id: int
    frames: tuple[int, ...]
    flags: StackFlag
    generation: int


def generated_regions(mappings: Iterable[Mapping]) -> list[int]:
    """Returns numbers of regions of code without a file in which no file can be mapped.

    The program's own memory may surround the code, such as what a compiler has reserved.
    """
    regions: set[int] = set()
    run: list[Mapping] = []
    for mapping in [*mappings, None]:
        is_own = mapping is not None and not mapping.is_file and not mapping.path.startswith("[")
        if run and (not is_own or mapping is None or mapping.start != run[-1].end):
            least, most = -(-run[0].start >> REGION_SHIFT), run[-1].end >> REGION_SHIFT
            for code in (each for each in run if each.executable):
                first, last = code.start >> REGION_SHIFT, -(-code.end >> REGION_SHIFT)
                regions.update(range(max(first, least), min(last, most)))
            run = []
        if is_own and mapping is not None:
            run.append(mapping)
    return sorted(regions)


class Unwinder:
    """Makes unwind rows and finishes stacks of one process. For the pump thread."""

    def __init__(
        self,
        space: AddressSpace,
        table: RowTable,
        max_frames: int,
        ahead: RowsAhead,
        refresh: Callable[[], None],
    ) -> None:
        """``refresh`` is called when a stack passes code that was not mapped before."""
        self._space, self.table, self._max_frames = space, table, max_frames
        self.ahead = ahead  # Makes rows beforehand, for the same address space and table
        self._refresh, self._may_refresh = refresh, False
        self._maps = AddressMap([])
        # Generation since which a mapping is known to have existed without interruption
        self._since: dict[Mapping, int] = {}
        # Addresses that got rows when stacks passed them; cleared when mappings change
        self._known: set[int] = set()
        self._walker = StackWalker(space.process.pid)
        self._renewals = 0  # How often the walker got new mappings
        # Walkers by generation, with the mappings of that time
        self._earlier: OrderedDict[int, StackWalker] = OrderedDict()
        self._loaded: OrderedDict[int, Loaded] = OrderedDict()  # By generation
        # By such libraries: the walker that knows of them, and the shifts
        self._with_loaded: dict[Loaded, tuple[StackWalker, Sequence[Shift]]] = {}
        # By generation: what turns addresses into those of stored stacks
        self._shifts: OrderedDict[int, Sequence[Shift]] = OrderedDict()

    def fork(self, space: AddressSpace, table: RowTable, refresh: Callable[[], None]) -> Unwinder:
        """Returns an unwinder for a copy of the address space."""
        ahead = self.ahead.fork(space, table)
        child = Unwinder(space, table, self._max_frames, ahead, refresh)
        child._maps = self._maps
        child._shifts = OrderedDict({table.generation: space.shifts})
        child._since = dict.fromkeys(self._maps.mappings, table.generation)
        child._walker = self._walker.fork(space.process.pid, table.generation)
        return child

    def begin_image(self) -> None:
        """Resets after an exec: no existing row is valid any more."""
        for known in (self._earlier, self._loaded, self._with_loaded, self._shifts):
            known.clear()
        self._maps = AddressMap([])
        self._tell_walker()
        self.ahead.begin_image()

    def renew(self, generation: int, read: Callable[[], int]) -> bool:
        """Takes over the mappings of a generation; ``read`` returns the current one.

        The space must have been refreshed after ``generation`` was read. Returns False if it has
        changed meanwhile: the maps may then belong to another generation.
        """
        mappings = self._space.mappings
        code = [m for m in mappings if m.executable]
        before = set(self._maps.mappings)
        kept = [m for m in code if m in before]
        starts, ends = _bounds(kept)
        if read() != generation:
            return False
        if generation != self.table.generation and self._maps.mappings:
            # For stacks of that generation that are still to come.
            self._earlier[self.table.generation] = self._walker
            self._walker = StackWalker(self._space.process.pid)
            _drop_oldest(self._earlier, _MOST_EARLIER)
        self._maps = AddressMap(code)
        self._shifts[generation] = self._space.shifts
        _drop_oldest(self._shifts, _MOST_GENERATIONS)
        self._known.clear()
        kept_for_good = self._space.permanent_files()
        self.table.set_lasting(*_bounds(m for m in code if m.file_id in kept_for_good))
        if generation == self.table.generation:
            # Rows are never made for the kernel's own pages, such as the one for uprobes.
            is_new = any(m not in before and not m.path.startswith("[") for m in code)
            if is_new and self.table.is_shared:
                # A new mapping here may be another file in processes that share the table.
                self.table.renew(generation, starts, ends)
            self._since = {m: self._since.get(m, generation) for m in code}
        else:
            # A mapping that looks unchanged may have been another in between, unless it is never
            # unmapped.
            self._since = {m: 0 if m.file_id in kept_for_good else generation for m in code}
            self.table.renew(generation, starts, ends)
        self._cover_generated(mappings)
        self.ahead.renew(self._maps)
        # Now, since the address space may change later.
        self._tell_walker()
        return True

    def _cover_generated(self, mappings: Iterable[Mapping]) -> None:
        """Adds a row per region of generated code, so that the probes need not ask for rows."""
        keys = np.array(generated_regions(mappings)[:_MOST_REGIONS], np.uint64)
        if len(keys):
            rows = np.full(len(keys), FALLBACK_ROW, np.uint64)
            self.table.insert(region_keys(keys), rows, self.table.generation)

    def as_stored(self, frames: Frames, generation: int) -> Frames:
        """Returns the return addresses of a stack, of a generation, as stored stacks have them."""
        return as_stored(frames, self._shifts.get(generation, self._space.shifts))

    def lost_code(self) -> bool:
        """Whether code that was mapped at the last renewal is gone or replaced, by the maps."""
        now = set(self._space.mappings)
        gone = [before for before in self._maps.mappings if before not in now]
        # Generated code has the same row everywhere, as long as no file is mapped there.
        there = (self._space.find(before.start) for before in gone)
        return any(m.is_file for m in gone) or any(m is not None and m.is_file for m in there)

    def is_bottom(self, address: int) -> bool:
        """Whether a hand-made stack (makecontext, fibers) ends here: at a function's first byte."""
        tables, inside = self._tables_at(address)
        return tables is not None and tables.is_start(inside)

    def is_unreadable(self, return_address: int) -> bool:
        """Whether a call is in code whose call-frame information exists but can't be read."""
        found, at = self._tables_at(return_address - 1)
        return found is not None and found.row(at) == FALLBACK_ROW and found.trouble is not None

    def _tables_at(self, address: int) -> tuple[UnwindTables | None, int]:
        module, inside = self._inside(address)
        return (self._space.files.tables(module), inside) if module is not None else (None, 0)

    def _inside(self, address: int) -> tuple[Module | None, int]:
        """Returns (file that has code at an address, its own address); no file: None."""
        place = self._space.place(address)
        if isinstance(place, Unresolved) or place.module is None:
            return None, 0
        inside = place.module.elf.address_of(place.file_offset)
        return (None, 0) if inside is None else (place.module, inside)

    def supply_rows(self, misses: Iterable[Miss]) -> None:
        """Gives the probes the rows for which misses are waiting: else thousands more come."""
        self._may_refresh = True
        by_missing = {miss.missing: miss for miss in misses if miss.missing not in self._known}
        if by_missing:
            self._follow(list(by_missing.values()))

    def finish(self, misses: Iterable[Miss]) -> list[FinishedStack]:
        """Finishes the stacks of misses; rows are in the table when this method returns."""
        self._may_refresh = True
        misses = list(misses)
        # Now, since the mappings may be read again.
        walkers = [self._earlier.get(miss.generation) for miss in misses]
        new = [miss for miss, walker in zip(misses, walkers, strict=True) if walker is None]
        followed, found = iter(self._follow(new)), []
        for miss, walker in zip(misses, walkers, strict=True):
            stack = next(followed) if walker is None else self._follow_by(walker, miss)
            is_cut = stack is None or stack.walk.end is End.NO_MODULE
            if is_cut and miss.generation in self._loaded:
                stack = self._follow_by(self._knowing_loaded(miss.generation), miss) or stack
            found.append(_finished(miss, stack))
        return found

    def note_loaded(self, libraries: Iterable[Miss]) -> None:
        """Notes libraries that the loader has mapped: maps may be read when they are gone."""
        for one in libraries:
            self._space.open_library(one.library)
            found = self._loaded.get(one.generation, frozenset())
            self._loaded[one.generation] = found | {(one.stack_address, one.library)}
        _drop_oldest(self._loaded, _MOST_GENERATIONS)

    def _knowing_loaded(self, generation: int) -> StackWalker:
        """Returns a walker that knows code that is always mapped, and what was loaded then."""
        libraries = self._loaded[generation]
        if libraries not in self._with_loaded:
            kept_for_good = self._space.permanent_files()
            code = {m for m in self._maps.mappings if m.file_id in kept_for_good}
            code.update(*(self._space.code_of(*one) for one in libraries))
            rows, files = [], []
            for mapping in sorted(code):
                module = self._space.module_of(mapping)
                if module is not None:
                    files.append(module.elf)
                    rows.append((mapping.start, mapping.end, 0, module.elf.number, mapping.offset))
            walker = StackWalker(self._space.process.pid)
            walker.renew(rows, files)
            if len(self._with_loaded) >= _MOST_EARLIER:
                self._with_loaded.clear()
            self._with_loaded[libraries] = walker, self._space.shifts_of(code)
        walker, shifts = self._with_loaded[libraries]
        self._shifts[generation] = shifts
        return walker

    def _follow_by(self, walker: StackWalker, miss: Miss) -> FollowedStack | None:
        try:
            return walker.follow([miss], self._max_frames)[0][0]
        except FileReadError:
            return None

    def _tell_walker(self) -> None:
        self._renewals += 1
        self._walker.renew(*self._code())

    def _follow(self, misses: Sequence[Miss]) -> Sequence[FollowedStack | None]:
        """Unwinds stacks (None if that fails), and stores the rows that were needed."""
        generation, renewals = self.table.generation, self._renewals
        try:
            followed, rows = self._walker.follow(misses, self._max_frames)
        except FileReadError:
            return [None] * len(misses)
        self._note_rows(rows, generation)
        if self._may_refresh and any(stack.met_unmapped for stack in followed):
            self._may_refresh = False
            self._refresh()
            if self._renewals != renewals:
                return self._follow(misses)
        return followed

    def _note_rows(self, rows: dict[int, int], generation: int) -> None:
        inside = {address: row for address, row in rows.items() if self._maps.find(address)}
        sites, values = (np.fromiter(each, np.uint64) for each in (inside.keys(), inside.values()))
        if not inside or not self.table.insert(sites, values, generation):
            return
        for address in inside.keys() - self._known:
            module, at = self._inside(address)
            if module is not None:
                self.ahead.note_met(module, at)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.update(inside)

    def _code(self) -> tuple[list[tuple[int, int, int, int, int]], list[AskedFile]]:
        rows, files = [], dict[int, AskedFile]()
        for mapping in self._maps.mappings:
            place = self._space.place(mapping.start)
            number, offset = UNREADABLE, 0
            if not isinstance(place, Unresolved) and place.mapping == mapping:
                offset = place.file_offset
                if place.reason is Unresolved.ANONYMOUS:
                    number = GENERATED
                elif place.module is not None:
                    number = place.module.elf.number
                    files[number] = place.module.elf
            rows.append((mapping.start, mapping.end, self._since[mapping], number, offset))
        return rows, list(files.values())


def _drop_oldest(known: OrderedDict[int, Any], most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)


def _bounds(mappings: Iterable[Mapping]) -> tuple[U64, U64]:
    """Returns where mappings begin, and where they end."""
    bounds = np.array([(m.start, m.end) for m in mappings], np.uint64).reshape(-1, 2)
    return bounds[:, 0].copy(), bounds[:, 1].copy()


def _finished(miss: Miss, followed: FollowedStack | None) -> FinishedStack:
    if followed is None:
        return FinishedStack(miss.stack_id, miss.registers[:1], StackFlag.BAD_CFI, miss.generation)
    flags = _FLAGS[followed.walk.end]
    if followed.walk.fallback_count:
        flags |= StackFlag.GUESSED
    return FinishedStack(miss.stack_id, followed.walk.frames, flags, miss.generation)
