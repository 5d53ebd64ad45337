"""Names of the words that lead to blocks: variables of modules and of threads, by symbol.

All words of one variable are one root: a container may have several words. Where a module has no
symbols, each word is a root, and part of another root, the module's whole data.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass, field
from tracelloc.files.demangle import demangle
from tracelloc.files.dwarf.variables import SourcePlace
from tracelloc.files.elf import Symbol
from tracelloc.model.blocks import HeapRoot, RootKind
from tracelloc.model.codefiles import base_name
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.memory import U64
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.reachability.heaproots import RootParts, thread_data_root
from tracelloc.record.symbolization.modulesymbols import ModuleSymbols
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.record.worker.client import FileReadError

_AT_ONCE: Final = 4096
_MOST_ROUNDS: Final = 64  # Questions for the symbols of one module, each for so many addresses
_MOST_WORDS: Final = 1 << 16  # Words without a symbol that are roots of their own, of each module


@dataclass(slots=True)
class NamedWords:
    """The numbers of the roots of some words, and which roots are parts of others."""

    addresses: U64  # Addresses of the words, ascending, without repeats
    numbers: U64  # The number of each word's root
    # For a root that is part of another root: by its number, that root's number.
    wholes: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # Modules without readable symbols; from target


def name_words(space: AddressSpace, parts: RootParts, addresses: U64) -> NamedWords:
    """Finds the roots of words, given their addresses, ascending and without repeats."""
    found = NamedWords(addresses, np.zeros(len(addresses), np.uint64))
    if not len(addresses):
        return found
    space.refresh()
    symbolizer = Symbolizer(space)
    try:
        naming = _Naming(space, symbolizer, parts, found)
        naming.name_threads()
        for module in space.mapped_modules:
            naming.name_module(module)
    finally:
        symbolizer.close()
    rest = np.flatnonzero(found.numbers == 0)
    found.numbers[rest] = [parts.root_at(address) for address in addresses[rest].tolist()]
    return found


class _Naming:
    def __init__(
        self, space: AddressSpace, symbolizer: Symbolizer, parts: RootParts, found: NamedWords
    ) -> None:
        self._space = space
        self._symbolizer = symbolizer
        self._parts = parts
        self._found = found
        self._layout = native().threads

    def _rows(self, start: int, end: int) -> slice:
        first, last = np.searchsorted(self._found.addresses, np.array([start, end], np.uint64))
        return slice(int(first), int(last))

    def name_module(self, module: Module) -> None:
        for bias in self._biases(module):
            try:
                symbols = self._symbolizer.module(module)
                for start, end in symbols.data_layout.segments:
                    self._name_data(symbols, bias, self._rows(bias + start, bias + end))
            except FileReadError as error:
                self._found.notes.append(f"no names of variables in {module.path}: {error}")
                return

    def _biases(self, module: Module) -> Iterator[int]:
        own = [m for m in self._space.mappings if self._space.module_of(m) is module]
        lowest = min((m.offset for m in own), default=0)
        inside = module.elf.address_of(lowest)
        if inside is not None:
            yield from (m.start - inside for m in own if m.offset == lowest)

    def _name_data(self, symbols: ModuleSymbols, bias: int, rows: slice) -> None:
        addresses, numbers = self._found.addresses[rows], self._found.numbers[rows]
        if not len(addresses):
            return
        module = symbols.module.path
        variables = list(_variables(symbols, addresses - np.uint64(bias % (1 << 64))))
        places: Sequence[SourcePlace] = [(None, None)] * len(variables)
        if symbols.may_have_lines:
            places = symbols.lines.variables([symbol.address for symbol, *_ in variables])
        for (symbol, first, last), (file, line) in zip(variables, places, strict=True):
            name = demangle(symbol.name)
            root = HeapRoot(RootKind.VARIABLE, name, module, file=file or "", line=line or 0)
            numbers[first:last] = self._parts.number(root)
        rest = np.flatnonzero(numbers == 0)
        if not len(rest):
            return
        name = base_name(module)
        whole = self._parts.number(HeapRoot(RootKind.MODULE, f"data of {name}", module))
        numbers[rest[_MOST_WORDS:]] = whole
        for row in rest[:_MOST_WORDS].tolist():
            inside = f"{name}+{int(addresses[row]) - bias:#x}"
            number = self._parts.number(HeapRoot(RootKind.VARIABLE, inside, module))
            numbers[row] = number
            self._found.wholes[number] = whole

    def name_threads(self) -> None:
        most_bytes = self._thread_bytes()
        pointers = [0, *(each.pointer for each in self._parts.threads), native().address_end]
        for thread, before, after in zip(self._parts.threads, pointers, pointers[2:], strict=False):
            start, end = self._layout.record(thread.pointer)
            record = self._rows(max(start, before), min(end, after))
            name, ids = f"thread-specific data of {thread.title}", (thread.thread_id,)
            self._set(record, HeapRoot(RootKind.THREAD_LOCAL, name, "", ids))
            own = self._rows(*self._layout.variables(thread.pointer, most_bytes))
            self._set(own, thread_data_root(thread.thread_id, thread.title))
        program = self._space.process.executable()
        for module in self._space.modules:
            if module.path == program:
                try:
                    self._name_thread_variables(self._symbolizer.module(module))
                except FileReadError as error:
                    self._found.notes.append(f"no names of thread-local variables: {error}")
                return

    def _set(self, rows: slice, root: HeapRoot) -> None:
        if rows.start < rows.stop:
            self._found.numbers[rows] = self._parts.number(root)

    def _thread_bytes(self) -> int:
        total = 0
        for module in self._space.mapped_modules:
            try:
                layout = self._symbolizer.module(module).data_layout
            except FileReadError:
                continue
            total += layout.thread_bytes + layout.thread_alignment
        return total

    def _name_thread_variables(self, symbols: ModuleSymbols) -> None:
        layout = symbols.data_layout
        size = layout.thread_bytes, layout.thread_alignment
        rows, offsets, ids = [], [], []
        for thread in self._parts.threads:
            start, end = self._layout.program_variables(thread.pointer, *size)
            own = self._rows(start, end)
            if start >= 0 and own.start < own.stop:
                rows.append(np.arange(own.start, own.stop))
                offsets.append(self._found.addresses[own] - np.uint64(start))
                ids.append(np.full(own.stop - own.start, thread.thread_id))
        if not rows:
            return
        all_rows, all_ids = np.concatenate(rows), np.concatenate(ids)
        unique, which = np.unique(np.concatenate(offsets), return_inverse=True)
        order = np.argsort(which, kind="stable")
        firsts = np.searchsorted(which[order], np.arange(len(unique) + 1))
        for symbol, first, last in _variables(symbols, unique, of_threads=True):
            found = order[firsts[first] : firsts[last]]
            thread_ids = tuple(np.unique(all_ids[found]).tolist())
            name, path = demangle(symbol.name), symbols.module.path
            root = HeapRoot(RootKind.THREAD_LOCAL, name, path, thread_ids)
            self._found.numbers[all_rows[found]] = self._parts.number(root)


def _variables(
    symbols: ModuleSymbols, addresses: U64, *, of_threads: bool = False
) -> Iterator[tuple[Symbol, int, int]]:
    """Yields variables at ascending addresses: (variable, first row, end). Raises FileReadError."""
    is_open = np.ones(len(addresses), np.bool_)
    for _ in range(_MOST_ROUNDS):
        rows = np.flatnonzero(is_open)
        if not len(rows):
            return
        asked = rows[:: -(-len(rows) // _AT_ONCE)]
        found = symbols.find_variables(addresses[asked].tolist(), of_threads=of_threads)
        is_open[asked] = False
        seen: set[tuple[int, int]] = set()
        for symbol in found:
            if symbol is None or (symbol.address, symbol.size) in seen:
                continue
            seen.add((symbol.address, symbol.size))
            bounds = np.array([symbol.address, symbol.address + max(symbol.size, 8)], np.uint64)
            first, last = np.searchsorted(addresses, bounds).tolist()
            is_open[first:last] = False
            yield symbol, first, last
