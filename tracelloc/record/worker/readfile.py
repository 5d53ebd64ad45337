"""One file in a worker: its names and lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any, Final

import numpy as np

from tracelloc.files.dwarf.decoder import DwarfDecoder, open_decoder
from tracelloc.files.elf import ElfFile, NotElfError, RawTable, SymbolTable
from tracelloc.files.elf.debugfiles import belongs_to, embedded_symbols, references_of
from tracelloc.files.elf.plt import plt_functions
from tracelloc.files.elf.sections import SectionError
from tracelloc.files.elf.symtab import THREAD_LOCALS, VARIABLES


class ReadFile:
    """A file of code, with its debug file if any. Its methods answer the questions."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._debug: ElfFile | None = None
        self._decoders: dict[bool, DwarfDecoder] = {}

    def describe(self) -> list[Any]:
        """Returns whether it has a symbol table, whether lines, and its debug file references."""
        return [
            self._own_table is not None,
            _has_lines(self._elf),
            *astuple(references_of(self._elf)),
        ]

    def add_debug_file(self, descriptor: int, *, by_name: bool) -> list[bool]:
        """Returns whether a file is its debug file, and if so, has lines; it is then kept."""
        try:
            debug = ElfFile(descriptor)
        except NotElfError:
            return [False, False]
        if not belongs_to(debug, references_of(self._elf), by_name=by_name):
            debug.close()
            return [False, False]
        self._debug = debug
        return [True, _has_lines(debug)]

    @cached_property
    def _own_table(self) -> RawTable | None:
        return self._elf.table(".symtab")

    @cached_property
    def _embedded(self) -> ElfFile | None:
        return embedded_symbols(self._elf)

    @cached_property
    def _tables(self) -> list[RawTable]:
        tables = list(self._elf.tables())
        if self._own_table is None:
            if self._embedded is not None:
                tables.extend(self._embedded.tables())
            if self._debug is not None:
                tables.extend(self._debug.tables())
        return tables

    @cached_property
    def _table(self) -> SymbolTable:
        tables = list(self._tables)
        stubs = plt_functions(self._elf)
        if stubs:
            tables.append(RawTable.made_up(stubs))
        return SymbolTable(tables)

    def count(self) -> list[Any]:
        """Returns the number of named functions, whether a symbol table is embedded, troubles."""
        return [len(self._table), self._embedded is not None, self._elf.troubles]

    def symbols(self, addresses: Sequence[int]) -> list[Any]:
        """Returns the name, address and size of the function at each address."""
        found = self._table.find_all(np.array(addresses, np.uint64))
        return [None if symbol is None else astuple(symbol) for symbol in found]

    @cached_property
    def _variables(self) -> SymbolTable:
        return SymbolTable(self._tables, VARIABLES)

    @cached_property
    def _thread_locals(self) -> SymbolTable:
        return SymbolTable(self._tables, THREAD_LOCALS)

    def variables(self, addresses: Sequence[int], *, of_threads: bool) -> list[Any]:
        """Returns the name, address and size of the variable at each address."""
        table = self._thread_locals if of_threads else self._variables
        found = table.find_all(np.array(addresses, np.uint64))
        return [None if symbol is None else astuple(symbol) for symbol in found]

    def data_layout(self) -> list[Any]:
        """Returns the file's ``DataLayout``."""
        return list(astuple(self._elf.data_layout))

    def decode(self, *, of_debug: bool) -> str | None:
        """Prepares for ``chains``. Returns why that is impossible; None if it is possible."""
        elf = self._debug if of_debug else self._elf
        decoder = "it has no debug file" if elf is None else open_decoder(elf)
        if isinstance(decoder, str):
            return decoder
        self._decoders[of_debug] = decoder
        return None

    def chains(self, addresses: Sequence[int], *, of_debug: bool) -> list[Any]:
        """Returns chains, the paths of .dwo files, and why they are incomplete."""
        decoder = self._decoders[of_debug]
        chains = decoder.chains(addresses)
        plain = [[astuple(frame) for frame in chain] for chain in chains]
        return [plain, decoder.split_paths, decoder.reason]

    def variable_places(self, addresses: Sequence[int], *, of_debug: bool) -> list[Any]:
        """Returns the source file and line of each variable."""
        return [list(place) for place in self._decoders[of_debug].variables(addresses)]

    def close(self) -> None:
        """Closes the file and its debug file."""
        for elf in (self._elf, self._debug):
            if elf is not None:
                elf.close()


def _has_lines(elf: ElfFile) -> bool:
    try:
        return elf.open_section(".debug_line") is not None
    except SectionError:
        return False


NAME_ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    "describe": lambda file, _: file.describe(),
    "count": lambda file, _: file.count(),
    "symbols": lambda file, _, addresses: file.symbols(addresses),
    "variables": lambda file, _, addresses, of_threads: file.variables(
        addresses, of_threads=of_threads
    ),
    "variable places": lambda file, _, addresses, of_debug: file.variable_places(
        addresses, of_debug=of_debug
    ),
    "data layout": lambda file, _: file.data_layout(),
    "debug": lambda file, given, by_name: file.add_debug_file(given[0], by_name=by_name),
    "decode": lambda file, _, of_debug: file.decode(of_debug=of_debug),
    "chains": lambda file, _, addresses, of_debug: file.chains(addresses, of_debug=of_debug),
}
"""Answers about a file, given the file and the descriptors of the question."""
