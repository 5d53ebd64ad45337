"""What tracelloc asks about the names and lines of one file."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tracelloc.files.dwarf import Chain
from tracelloc.files.dwarf.decoder import DwarfDecoder, open_decoder
from tracelloc.files.dwarf.variables import SourcePlace
from tracelloc.files.elf import ElfFile, NotElfError, RawTable, Symbol, SymbolTable
from tracelloc.files.elf.debugfiles import (
    DebugReferences,
    belongs_to,
    embedded_symbols,
    references_of,
)
from tracelloc.files.elf.file import DataLayout
from tracelloc.files.elf.plt import plt_functions
from tracelloc.files.elf.sections import SectionError
from tracelloc.files.elf.symtab import THREAD_LOCALS, VARIABLES
from tracelloc.record.worker.codefilereader import CodeFileReader
from tracelloc.record.worker.questions import Descriptor, question


def _are_there(found: Sequence[Symbol | None], addresses: Sequence[int], *_: bool) -> bool:
    return len(found) == len(addresses) and all(
        symbol is None or symbol.address <= address
        for symbol, address in zip(found, addresses, strict=True)
    )


class SymbolFileReader(CodeFileReader):
    """Answers questions about a file's names and lines, also from its debug file, in a worker."""

    def __init__(self, elf: ElfFile) -> None:
        super().__init__(elf)
        self._debug: ElfFile | None = None
        self._decoders: dict[bool, DwarfDecoder] = {}

    @question()
    def describe(self) -> tuple[bool, bool, DebugReferences]:
        """Returns (whether the file has a symbol table, lines; its debug file references)."""
        return self._own_table is not None, _has_lines(self.elf), references_of(self.elf)

    @question()
    def add_debug_file(self, descriptor: Descriptor, by_name: bool) -> tuple[bool, bool]:
        """Keeps a file if it is the debug file. Returns (whether it is, whether it has lines)."""
        try:
            debug = ElfFile(descriptor.number)
        except NotElfError:
            return False, False
        if not belongs_to(debug, references_of(self.elf), by_name=by_name):
            debug.close()
            return False, False
        self._debug = debug
        return True, _has_lines(debug)

    @cached_property
    def _own_table(self) -> RawTable | None:
        return self.elf.table(".symtab")

    @cached_property
    def _embedded(self) -> ElfFile | None:
        return embedded_symbols(self.elf)

    @cached_property
    def _tables(self) -> list[RawTable]:
        tables = list(self.elf.tables())
        if self._own_table is None:
            if self._embedded is not None:
                tables.extend(self._embedded.tables())
            if self._debug is not None:
                tables.extend(self._debug.tables())
        return tables

    @cached_property
    def _table(self) -> SymbolTable:
        tables = list(self._tables)
        stubs = plt_functions(self.elf)
        if stubs:
            tables.append(RawTable.made_up(stubs))
        return SymbolTable(tables)

    @question()
    def count(self) -> tuple[int, bool, list[str]]:
        """Returns (number of named functions, whether a table is embedded, troubles)."""
        return len(self._table), self._embedded is not None, self.elf.troubles

    @question(_are_there)
    def symbols(self, addresses: Sequence[int]) -> list[Symbol | None]:
        """Returns the function at each address; None if there is none."""
        return self._table.find_all(np.array(addresses, np.uint64))

    @cached_property
    def _variables(self) -> SymbolTable:
        return SymbolTable(self._tables, VARIABLES)

    @cached_property
    def _thread_locals(self) -> SymbolTable:
        return SymbolTable(self._tables, THREAD_LOCALS)

    @question(_are_there)
    def variables(self, addresses: Sequence[int], of_threads: bool) -> list[Symbol | None]:
        """Returns variables, or None; ``of_threads``: by offset in the thread-local block."""
        table = self._thread_locals if of_threads else self._variables
        return table.find_all(np.array(addresses, np.uint64))

    @question(lambda found: found.thread_alignment > 0)
    def data_layout(self) -> DataLayout:
        """Returns where the file's variables lie."""
        return self.elf.data_layout

    @question()
    def decode(self, of_debug: bool) -> str | None:
        """Prepares decoding of lines. Returns why that is impossible; None if it is possible."""
        elf = self._debug if of_debug else self.elf
        decoder = "it has no debug file" if elf is None else open_decoder(elf)
        if isinstance(decoder, str):
            return decoder
        self._decoders[of_debug] = decoder
        return None

    @question(lambda found, addresses, _: len(found[0]) == len(found[1]) == len(addresses))
    def chains(
        self, addresses: Sequence[int], of_debug: bool
    ) -> tuple[list[Chain], list[str | None], str | None]:
        """Returns (a chain of source frames per address, paths of .dwo files, why data lacks)."""
        decoder = self._decoders[of_debug]
        chains = decoder.chains(addresses)  # sets the others
        return chains, decoder.split_paths, decoder.reason

    @question(lambda found, addresses, _: len(found) == len(addresses))
    def variable_places(self, addresses: Sequence[int], of_debug: bool) -> list[SourcePlace]:
        """Returns where the variables at these addresses are declared."""
        return self._decoders[of_debug].variables(addresses)

    def close(self) -> None:
        for elf in (self.elf, self._debug):
            if elf is not None:
                elf.close()


def _has_lines(elf: ElfFile) -> bool:
    try:
        return elf.open_section(".debug_line") is not None
    except SectionError:
        return False
