"""Stacks without frame pointers: rows for the probes, and what they could not finish.

The probes follow a stack by rows, one per call site (``probes/walk_rows.h``), which are made
beforehand as far as there is room (``unwinding/ahead.py``). Others are made when a stack
first comes by: the probes then send its registers and memory (a miss), from which it is
finished here by the full rules, exactly, while the row serves for the next time.

Rows are for what was mapped when they were made. Each time the loader maps or unmaps a
library, or something else does, the generation in their keys changes, and rows of what is
still mapped move to the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import REGION_SHIFT, REGION_TAG, StackFlag
from tracelloc.capture.ring import Miss
from tracelloc.capture.rowtable import RowTable
from tracelloc.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.cfi.module import Cfi
from tracelloc.cfi.rules import FALLBACK_ROW, FRAME_POINTER, RBP, RBX, RIP, RSP
from tracelloc.cfi.walk import End
from tracelloc.target.allocators import Module
from tracelloc.target.procfs import AddressMap, Mapping
from tracelloc.target.space import AddressSpace, Unresolved
from tracelloc.unwinding.ahead import RowsAhead

U64 = npt.NDArray[np.uint64]

_REGISTERS: Final = (RIP, RSP, RBP, RBX, 12, 13, 14, 15)
"""DWARF numbers in the order of ``enum miss_register``."""
_MOST_REGIONS: Final = 1 << 14
"""Regions of generated code with a row: 1 GiB of it."""
_MOST_KNOWN: Final = 1 << 16
"""Addresses whose rules are at hand. A hot program needs a few thousand."""

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
class Finished:
    """A stack that the probes had left to us."""

    stack_id: int
    frames: tuple[int, ...]
    flags: StackFlag


def generated_regions(mappings: Iterable[Mapping]) -> list[int]:
    """Numbers of regions with code of no file, and in which no file can be mapped.

    Around the code there may be other memory of the program's own, such as what a just-in-time
    compiler has reserved for more.
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
    """Makes rows and finishes stacks. For the thread that pumps."""

    def __init__(
        self,
        space: AddressSpace,
        table: RowTable,
        max_frames: int,
        ahead: RowsAhead,
        refresh: Callable[[], None],
    ) -> None:
        """``refresh`` is called when a stack comes by code that was not mapped before."""
        self._space = space
        self.ahead = ahead
        """What makes rows beforehand; for the same address space and table."""
        self._refresh = refresh
        self._may_refresh = False
        self.table = table
        self._max_frames = max_frames
        self._maps = AddressMap([])
        self._since: dict[Mapping, int] = {}
        """Generation from which on a mapping is known to have been there all the time."""
        self._known: dict[int, tuple[int, RuleSet]] = {}
        """Rules by address, and since which generation they hold; as long as the mappings stay
        as they are."""
        self._made: dict[int, int] = {}
        """Rows by address that the probes don't have yet."""

    def fork(self, space: AddressSpace, table: RowTable, refresh: Callable[[], None]) -> Unwinder:
        """Returns an unwinder for a copy of the address space."""
        ahead = self.ahead.fork(space, table)
        child = Unwinder(space, table, self._max_frames, ahead, refresh)
        child._maps = self._maps
        child._since = dict.fromkeys(self._maps.mappings, table.generation)
        return child

    def begin_image(self) -> None:
        """The process has begun another program: no row is of use any more."""
        self._maps = AddressMap([])
        self.ahead.begin_image()

    def renew(self, generation: int, read: Callable[[], int]) -> bool:
        """Learns what is mapped now, as of a generation; ``read`` gives the current one.

        The address space must have been refreshed after ``generation`` was read. False if
        the generation has changed meanwhile: what the maps say may be of the next one.
        """
        mappings = self._space.mappings
        code = [m for m in mappings if m.executable]
        before = set(self._maps.mappings)
        kept = [m for m in code if m in before]
        starts = np.array([m.start for m in kept], np.uint64)
        ends = np.array([m.end for m in kept], np.uint64)
        if read() != generation:
            return False
        self._maps = AddressMap(code)
        self._known.clear()
        self._made.clear()
        if generation == self.table.generation:
            # Rows are never made for the kernel's own pages, such as the one for uprobes.
            is_new = any(m not in before and not m.path.startswith("[") for m in code)
            if is_new and self.table.is_shared:
                # What is new here may be something else there.
                self.table.renew(generation, starts, ends)
            self._since = {m: self._since.get(m, generation) for m in code}
        else:
            # What looks the same may have been something else in between, but for what is
            # never unmapped.
            kept_for_good = self._space.permanent_files()
            self._since = {m: 0 if m.file_id in kept_for_good else generation for m in code}
            self.table.renew(generation, starts, ends)
        self._cover_generated(mappings)
        self.ahead.renew(self._maps)
        return True

    def _cover_generated(self, mappings: Iterable[Mapping]) -> None:
        """Rows for whole regions of code that belongs to no file: of it nothing is known.

        A just-in-time compiler makes new code all the time; nothing has to be asked for it.
        """
        keys = np.array(generated_regions(mappings)[:_MOST_REGIONS], np.uint64)
        if len(keys):
            rows = np.full(len(keys), FALLBACK_ROW, np.uint64)
            self.table.insert(keys | np.uint64(REGION_TAG), rows, self.table.generation)

    def lost_code(self) -> bool:
        """Whether code that was there the last time is gone or another, by the maps."""
        now = set(self._space.mappings)
        return any(
            before.is_file or self._is_file_now(before)
            for before in self._maps.mappings
            if before not in now
        )

    def _is_file_now(self, before: Mapping) -> bool:
        # Generated code has the same row wherever it is, as long as there is no file.
        mapping = self._space.find(before.start)
        return mapping is not None and mapping.is_file

    def cfi_of(self, module: Module) -> Cfi | None:
        """A file's call-frame information; None if there is none."""
        return self._space.files.cfi(module)

    def is_bottom(self, address: int) -> bool:
        """Whether this is where somebody built a stack by hand (makecontext, fibers).

        A function's first byte is no return address: nobody called, it was put there.
        """
        cfi, inside = self._cfi_at(address)
        return cfi is not None and cfi.is_start(inside)

    def is_unreadable(self, return_address: int) -> bool:
        """Whether the call is in code whose information the file has, but that can't be read."""
        cfi, inside = self._cfi_at(return_address - 1)
        return cfi is not None and cfi.trouble is not None and cfi.row(inside) == FALLBACK_ROW

    def _cfi_at(self, address: int) -> tuple[Cfi | None, int]:
        """The information of the file that is mapped there, and the file's own address."""
        place = self._space.place(address)
        if isinstance(place, Unresolved) or place.module is None:
            return None, 0
        inside = place.module.elf.address_of(place.file_offset)
        return (None, 0) if inside is None else (self.cfi_of(place.module), inside)

    def hasten(self, misses: Iterable[Miss]) -> None:
        """Gives the probes the rows for which these misses are waiting.

        Until they are there, thousands more come for want of the same few.
        """
        self._may_refresh = True
        for missing, miss in {miss.missing: miss for miss in misses}.items():
            if missing not in self._known:
                self._finish(miss)
        self._supply()

    def finish(self, misses: Iterable[Miss]) -> list[Finished]:
        """The stacks of these misses; their rows are in the table when this returns."""
        self._may_refresh = True
        finished = [self._finish(miss) for miss in misses]
        self._supply()
        return finished

    def _supply(self) -> None:
        """Gives the probes the rows that were made on the way."""
        rows, self._made = self._made, {}
        if rows:
            addresses = np.fromiter(rows.keys(), np.uint64, len(rows))
            values = np.fromiter(rows.values(), np.uint64, len(rows))
            self.table.insert(addresses, values, self.table.generation)

    def _finish(self, miss: Miss) -> Finished:
        def look_up(address: int) -> RuleSet | None:
            known = self._known.get(address) or self._look_up(address)
            # It may be that something else was mapped there then.
            return known[1] if known and known[0] <= miss.generation else None

        walk = unwind(
            dict(zip(_REGISTERS, miss.registers, strict=True)),
            StackCopy(miss.stack_address, miss.stack, miss.stack_holes),
            look_up,
            limit=self._max_frames,
        )
        flags = _FLAGS[walk.end]
        if walk.fallback_count:
            flags |= StackFlag.GUESSED
        return Finished(miss.stack_id, walk.frames, flags)

    def _look_up(self, address: int) -> tuple[int, RuleSet] | None:
        """The rules at an address, and since when they hold; notes the row for both sides."""
        mapping = self._maps.find(address)
        if mapping is None and self._may_refresh:
            self._may_refresh = False
            self._refresh()
            mapping = self._maps.find(address)
        if mapping is None:
            return None
        place = self._space.place(address)
        if isinstance(place, Unresolved) or place.mapping != mapping:
            return None
        if place.reason is Unresolved.ANONYMOUS:
            rules = FRAME_POINTER
        elif place.module is None:
            # A file that can't be read: to guess would be to invent.
            return None
        else:
            cfi = self.cfi_of(place.module)
            inside = place.module.elf.address_of(place.file_offset)
            if cfi is None or inside is None:
                return None
            rules = cfi.rules(inside)
            self.ahead.note_met(place.module, inside)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._made[address] = rules.row(address)
        self._known[address] = found = self._since[mapping], rules
        return found
