"""Replaces addresses of functions, wherever a stopped process stores them.

The loader has written the addresses of malloc and the like to the tables that calls go through
(global offset tables); programs store them in variables, structures of functions, and registers.
All of these are words of 8 bytes that equal the function's address. What the loader has yet to look
up, it computes from the C library's symbol table in memory, so the symbols' values are replaced as
well: they cover calls that have not been made yet, libraries that are opened later, and dlsym(3).
Format of symbols: System V gABI, chapter 4.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.record.process import ptrace
from tracelloc.record.process.memory import PAGE_BYTES, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region, read_regions, variables_of

Words = npt.NDArray[np.uint64]

_WORD_BYTES: Final = 8
_CHUNK_BYTES: Final = 16 << 20
# How much of each stack is searched again in a stopped process, from its top, in bytes.
_STACK_BYTES: Final = 1 << 20
_SYMBOL_BYTES: Final = 24
# `st_info` of global and weak functions, and of those that choose an implementation.
_FUNCTION_KINDS: Final = 0x12, 0x22, 0x1A, 0x2A
_SPECIAL: Final = "[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]", "[uprobes]"


def private_regions(process: Process, rights: Sequence[str] = ("-p",)) -> list[Region]:
    """Returns the process's readable private memory to search, by default without code.

    ``rights``: the last two letters in ``/proc/PID/maps``; "xp" is code.
    """
    return [
        region
        for region in read_regions(process.maps_text())
        if region.rights[0] == "r" and region.rights[2:] in rights and region.path not in _SPECIAL
        if not region.path.startswith("/dev/")
    ]


class WordFinder:
    """Finds words with certain values in a process's memory."""

    def __init__(self, process: Process, values: Iterable[int]) -> None:
        self._memory = RemoteMemory(process)
        self._values = np.array(sorted(values), np.uint64)
        self._buffer = np.empty(_CHUNK_BYTES // _WORD_BYTES, np.uint64)

    def find(self, areas: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Returns the value by address of all such words in areas (start, end), aligned.

        Pages that the process has never written to, and that are not in memory, are left out.
        """
        found: dict[int, int] = {}
        low, span = self._values[0], self._values[-1] - self._values[0]
        for at, words in self._read(sorted(areas)):
            near = np.flatnonzero(words - low <= span)
            chosen = words[near]
            places = self._values.searchsorted(chosen)
            for n in near[self._values[places] == chosen].tolist():
                found[at + n * _WORD_BYTES] = int(words[n])
        return found

    def _read(self, areas: list[tuple[int, int]]) -> Iterator[tuple[int, Words]]:
        for swapped in (False, True):
            for _, start, end in self._memory.resident_runs(areas, lambda: True, swapped=swapped):
                for at in range(start, end, _CHUNK_BYTES):
                    size_bytes = min(_CHUNK_BYTES, end - at)
                    got = self._memory.fetch(np.array([[at, size_bytes]], np.uint64), self._buffer)
                    yield at, self._buffer[: got // _WORD_BYTES]

    def among(self, places: Iterable[int]) -> dict[int, int]:
        """Returns the value by address of those ``places`` that have such a word."""
        addresses = np.fromiter(places, np.uint64)
        words, _ = self._memory.read(addresses, _WORD_BYTES)
        is_found = np.isin(words[:, 0], self._values)
        return dict(zip(addresses[is_found].tolist(), words[is_found, 0].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class FunctionSymbol:
    """The symbol of a function of the C library, in memory."""

    value: int  # Address in the file's own address space
    size_bytes: int


def find_symbols(
    process: Process, places: tuple[int, int], symbols: Iterable[FunctionSymbol]
) -> dict[int, int]:
    """Finds words of symbol tables in a mapped file's memory: value of a symbol, by address.

    ``places``: start and end of the mapped file. A symbol may have several names.
    """
    low, high = places
    sizes = {symbol.value: symbol.size_bytes for symbol in symbols}
    # Linkers put them beside the code on 64-bit Arm, and elsewhere without separate segments.
    regions = (r for r in private_regions(process, ("-p", "xp")) if low <= r.start < high)
    found = {}
    for at, value in WordFinder(process, sizes).find((r.start, r.end) for r in regions).items():
        entry = process.read_memory(at - _WORD_BYTES, _SYMBOL_BYTES)
        is_function = len(entry) == _SYMBOL_BYTES and entry[4] in _FUNCTION_KINDS
        if is_function and int.from_bytes(entry[16:], "little") == sizes[value]:
            found[at] = value
    return found


def earlier_words(process: Process, values: Iterable[int]) -> dict[int, int]:
    """Finds words in a running process's memory, which are looked at again once it is stopped."""
    return WordFinder(process, values).find((r.start, r.end) for r in private_regions(process))


def stopped_words(
    process: Process, thread_ids: Iterable[int], values: Iterable[int], earlier: Iterable[int]
) -> dict[int, int]:
    """Finds words in a stopped process: in its files' data, its stacks, and at earlier places."""
    finder = WordFinder(process, values)
    regions = private_regions(process)
    variables = {region.start for region in variables_of(regions)}
    red_zone_bytes = native().red_zone_bytes
    pointers = (ptrace.registers(each).stack_pointer for each in thread_ids)
    stacks = [(pointer - red_zone_bytes) & -PAGE_BYTES for pointer in pointers]
    places = np.fromiter(earlier, np.uint64)
    wanted = []
    for region in regions:
        start, end = region.start, region.end
        # The loader has made some of the files' data read-only.
        has_places = region.inode and bool(np.any((places >= start) & (places < end)))
        if start in variables or has_places:
            wanted.append((start, end))
        wanted.extend((top, min(end, top + _STACK_BYTES)) for top in stacks if start <= top < end)
    return finder.find(wanted) | finder.among(places.tolist())


def write_words(memory_fd: int, before: Mapping[int, int], after: Mapping[int, int]) -> None:
    """Writes words, by address, to a stopped process. Raises OSError, with all of them as before.

    Memory files may be written where the process itself may not write, if it is stopped by the
    one who writes (proc_pid_mem(5)).
    """

    def write(address: int, value: int) -> None:
        os.pwrite(memory_fd, value.to_bytes(_WORD_BYTES, "little"), address)

    done = []
    try:
        for address, value in after.items():
            write(address, value)
            done.append(address)
    except OSError:
        for address in done:
            write(address, before[address])
        raise


def replace_registers(thread_ids: Iterable[int], replaced: Mapping[int, int]) -> None:
    """Replaces values in the registers of stopped threads, by old value."""
    layout = native().general
    # The general registers but the stack pointer are the first.
    general = layout.names[: layout.names.index(layout.entered_call or layout.stack_pointer)]
    for thread_id in thread_ids:
        values = ptrace.registers(thread_id)
        found = [name for name in general if values[name] in replaced]
        for name in found:
            values[name] = replaced[values[name]]
        if found:
            ptrace.set_registers(thread_id, values)
