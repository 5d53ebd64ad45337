"""The call-frame information of one file, decoded on demand, and the call sites in its code.

Safe for use from several threads: two that decode the same entry get equal results.

Call sites are found without disassembly: any bytes that look like a call count, so some results
are data or, on x86-64, the middle of another instruction. No real call is missed, except calls
with a prefix inside the operand (there are none).
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import ARCHITECTURES, Architecture, elf_architecture
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.dataclass import dataclass
from tracelloc.errors import UnsupportedError
from tracelloc.files.cfi import core
from tracelloc.files.cfi.unwindsections import Table, read_at, read_debug_frame, read_eh_frame
from tracelloc.files.cfi.walk import CfiError
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.sections import SectionError


@dataclass(frozen=True, slots=True)
class BuiltInRules:
    """The unwind rules for code that no file describes, on one architecture."""

    frame_pointer: core.RuleSet  # Without information: that of a frame pointer, if any
    outermost: core.RuleSet  # For code without a caller on its stack
    signal_frame: core.RuleSet  # As of glibc's `__restore_rt`, for C libraries that provide none


def _based(register: int, number: int) -> bytes:
    """Returns the DWARF expression for a register + a number (below 8192), as short as possible."""
    operand = [number] if number < 64 else [number & 0x7F | 0x80, number >> 7]
    return bytes([0x70 + register, *operand])


@cache
def built_in_rules(architecture: Architecture) -> BuiltInRules:
    """Returns the built-in unwind rules of an architecture."""
    numbers = architecture.dwarf
    sp, fp, address = numbers.stack_pointer, numbers.frame_pointer, numbers.return_address
    places = architecture.signal_frame.places
    make = partial(core.RuleSet, architecture=architecture)
    saved = {fp: (core.OFFSET, -16, b""), address: (core.OFFSET, -8, b"")}
    frame = {number: (core.EXPRESSION, 0, _based(sp, place)) for number, place in places.items()}
    cfa, counter = _based(sp, places[sp]) + b"\x06", numbers.program_counter
    return BuiltInRules(
        frame_pointer=make(fp, 16, registers=saved, is_fallback=True),
        outermost=make(
            sp, architecture.return_address_bytes, registers={address: (core.UNDEFINED, 0, b"")}
        ),
        signal_frame=make(-1, 0, cfa, frame, counter, is_signal=True),
    )


# The row of code without call-frame information, on all architectures.
FALLBACK_ROW: Final = built_in_rules(X86_64).frame_pointer.row(0)
END_ROW: Final = built_in_rules(X86_64).outermost.row(0)  # Of code without a caller, everywhere


U64 = npt.NDArray[np.uint64]

_PAGE_SHIFT: Final = np.uint64(12)
_PIECE_BYTES: Final = 1 << 20
_MOST_SITES: Final = 1 << 24  # Call sites searched for at once; libLLVM-14 has a million
_MOST_CODE_BYTES: Final = 1 << 29
_GO_NOTE: Final = ".note.go.buildid"
_GO_SWITCHES: Final = ("runtime.asmcgocall", "runtime.asmcgocall.abi0")
_LEAST_CODE_BYTES: Final = 512
_SAMPLES: Final = 500


def _firsts(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Returns the first index of each distinct value of a sorted array, faster than ``unique``."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


class Cfi:
    """The call-frame information of an ELF file. Addresses are the file's own virtual ones."""

    def __init__(self, elf: ElfFile) -> None:
        """Reads nothing yet; ``elf`` stays the caller's. Raises UnsupportedError."""
        architecture = elf_architecture(elf.machine, elf.bits)
        if architecture is None:
            known = " and ".join(each.title for each in ARCHITECTURES)
            raise UnsupportedError(f"call-frame information is understood for {known} only")
        self.architecture = architecture
        self._built_in = built_in_rules(architecture)
        self._handler_return = architecture.signal_frame.return_code
        self._elf, self._executable = elf, [each for each in elf.segments if each.executable]
        self._lock = threading.Lock()
        self._tables: list[Table | None] = []
        self._switches: list[tuple[int, int]] | None = None
        self.covered_share: float | None = None  # Of code, 0 to 1; None before `all_rows`
        self.trouble: str | None = None  # The reason why existing information cannot be read

    def _table(self, which: int) -> Table | None:
        """Returns unwind table 0 (``.eh_frame``) or 1 (``.debug_frame``, for code not in 0)."""
        if len(self._tables) <= which:
            with self._lock:
                while len(self._tables) <= which:
                    read = (read_eh_frame, read_debug_frame)[len(self._tables)]
                    try:
                        self._tables.append(read(self._elf, self.architecture))
                    except SectionError as error:
                        self.trouble = str(error)
                        self._tables.append(None)
        return self._tables[which]

    def _tables_there(self) -> Iterator[Table]:
        yield from filter(None, map(self._table, (0, 1)))

    def _entries_at(self, address: int) -> Iterator[tuple[core.Entries, int]]:
        """Yields the last entries that start at or before an address, with their sections."""
        for entries, index in self._tables_there():
            if (offset := index.find(address)) is not None:
                yield entries, offset

    def rules(self, address: int) -> core.RuleSet:
        """Returns the unwind rules at an address: before a return address, or an interrupted one.

        Code without information gets the rules of a frame pointer. Raises CfiError if
        there is information that can't be used.
        """
        for start, size in self._stack_switches():
            if 0 <= address - start < size:
                return self._built_in.outermost
        for entries, offset in self._entries_at(address):
            if (found := entries.rules(offset, address)) is not None:
                return found
        return self._without_entry(address)

    def part_at(self, address: int) -> range | None:
        """Returns the addresses of the function part around an address; None if not described."""
        for entries, offset in self._entries_at(address):
            with suppress(CfiError):
                start, size = entries.fde(offset)
                if address < start + size:
                    return range(start, start + size)
        return None

    def is_start(self, address: int) -> bool:
        part = self.part_at(address)
        return part is not None and part.start == address

    def _sampled_share(self) -> float:
        """Approximate share of the code that is described, 0 to 1; 1 for what every linker adds."""
        text = self._elf.section_header(".text")
        if text is None or not _LEAST_CODE_BYTES <= text.size_bytes <= core.MASK - text.address:
            return 1.0
        places = np.linspace(text.address, text.address + text.size_bytes - 1, _SAMPLES)
        return float(np.mean(self.rows(places.astype(np.uint64)) != FALLBACK_ROW))

    def row(self, address: int) -> int:
        """Returns the row for an address: its unwind rules in 64 bits (probes/row.h)."""
        try:
            return self.rules(address).row(address)
        except CfiError as error:
            return core.reason_row(error.reason)

    def _stack_switches(self) -> list[tuple[int, int]]:
        """Address and size of functions whose call-frame information ignores a switch of stacks.

        Go calls C on the thread's stack. The function's information is correct on the goroutine's
        stack, where it was called; on the thread's stack it leads to outdated frames.
        """
        if self._switches is None:
            is_go = self._elf.section_header(_GO_NOTE) is not None
            found = self._elf.find_functions(_GO_SWITCHES) if is_go else {}
            self._switches = [place for places in found.values() for place in places.items()]
        return self._switches

    def _without_entry(self, address: int) -> core.RuleSet:
        # A handler returns to the first byte of this code. The requested address is one byte
        # before it, as after a call, or that byte itself if it was interrupted.
        around = read_at(self._elf, address, 1 + len(self._handler_return))
        is_return = self._handler_return in around
        return self._built_in.signal_frame if is_return else self._built_in.frame_pointer

    def _rows_without_entry(self, wanted: U64) -> U64:
        """Returns the rows of sorted addresses, of which only some have call-frame information."""
        rows = np.full(len(wanted), FALLBACK_ROW, np.uint64)
        for first, end in pairwise([*_firsts(wanted >> _PAGE_SHIFT).tolist(), len(wanted)]):
            start, last = int(wanted[first]), int(wanted[end - 1])
            around = read_at(self._elf, start, last - start + 1 + len(self._handler_return))
            if self._handler_return in around:
                found = [self._without_entry(at).row(0) for at in wanted[first:end].tolist()]
                rows[first:end] = found
        return rows

    def rows(self, addresses: U64) -> U64:
        """Returns the rows for many addresses at once, sorted or not; see ``row``."""
        order = np.argsort(addresses, kind="stable")
        wanted = addresses[order]
        found = np.zeros(len(wanted), np.uint64)
        for entries, index in self._tables_there():
            entries.rows(index.starts, index.offsets, wanted, found)
        bare = np.flatnonzero(found == 0)
        found[bare] = self._rows_without_entry(wanted[bare])
        for start, size in self._stack_switches():
            found[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + size)] = END_ROW
        result = np.empty_like(found)
        result[order] = found
        return result

    def all_rows(self, most: int) -> tuple[U64, U64]:
        """Returns all call sites and their rows; empty if there are more than ``most``."""
        sites = self.call_sites()
        if len(sites) > most:
            sites = sites[:0]
        self.covered_share = self._sampled_share()
        return sites, self.rows(sites)

    def call_sites(self) -> U64:
        """Returns the address of the last byte of each apparent call, sorted, for ``rows``.

        Data may look like calls, too. Searches only between the first and the last function with
        call-frame information.
        """
        start, end = self._covered()
        targets = self._call_targets(start, end)
        longest = self.architecture.longest_call_bytes
        room = np.empty(_PIECE_BYTES + longest, np.uint64)
        pieces: list[U64] = []
        count = 0
        for segment in self._executable:
            at = max(start, segment.address)
            last = min(end, segment.address + segment.file_size, at + _MOST_CODE_BYTES)
            while at < last and count < _MOST_SITES:
                size = min(_PIECE_BYTES, last - at)
                read_size = min(size + longest, last - at)  # A call may span two pieces
                code = self._elf.read(segment.offset + at - segment.address, read_size)
                if len(code) < size:
                    last = at
                found_count = core.find_calls(code, at, *targets, room, self.architecture)
                pieces.append(room[:found_count].copy())
                count += found_count
                at += size
        found = np.concatenate([*pieces, np.empty(0, np.uint64)])
        found.sort()
        return found[_firsts(found)]

    def _call_targets(self, start: int, end: int) -> tuple[int, int]:
        """Returns the address range that direct calls lead to.

        On x86-64, this is the covered code, which keeps data from looking like calls. Where
        instructions are aligned, few data do, and linkers don't describe the linkage table.
        """
        if not self.architecture.dwarf.has_link_register:
            return start, end
        ends = (each.address + each.file_size for each in self._executable)
        return min((each.address for each in self._executable), default=0), max(ends, default=0)

    def _covered(self) -> tuple[int, int]:
        starts, ends = [], []
        for entries, index in self._tables_there():
            if len(index):
                starts.append(int(index.starts[0]))
                ends.append(int(index.starts[-1]))
                with suppress(CfiError):
                    ends[-1] = min(sum(entries.fde(int(index.offsets[-1]))), core.MASK)
        return min(starts, default=0), max(ends, default=0)


def function_parts(elf: ElfFile, cfi: Cfi | None, name: str) -> list[range]:
    """Returns the parts into which a compiler has split a function; none if it has no symbol.

    Rarely executed code lies elsewhere (``.cold``), and stripped files have no symbol for it. But
    the function jumps there (on x86-64, conditionally), and the call-frame information identifies
    the part: it has a frame at its first byte, as no function has.

    No part is larger than the file, whatever its symbol says.
    """
    parts = [
        range(start, start + min(size, elf.size_bytes))
        for each in (name, f"{name}.cold")
        for start, size in elf.find_functions([each]).get(each, {}).items()
    ]
    if len(parts) == 1 and cfi is not None:
        offset = elf.offset_of(parts[0].start)
        code = elf.read(offset, len(parts[0])) if offset is not None else b""
        targets = cfi.architecture.jump_targets(code, parts[0].start)
        outside = {cfi.part_at(target) for target in targets if target not in parts[0]}
        found = (part for part in outside if part is not None and _is_split_off(cfi, part))
        parts += sorted(found, key=lambda part: part.start)
    return parts


def _is_split_off(cfi: Cfi, part: range) -> bool:
    """Whether a part has a frame at its first byte: it is no whole function."""
    machine = cfi.architecture
    without_frame = machine.dwarf.stack_pointer, machine.return_address_bytes
    with suppress(CfiError):
        rules = cfi.rules(part.start)
        return (rules.cfa_register, rules.cfa_offset) != without_frame
    return False
