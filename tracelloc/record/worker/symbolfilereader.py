"""What tracelloc asks about the names and lines of one file."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import Architecture, native
from tracelloc.files.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.files.cfi.module import built_in_rules
from tracelloc.files.cfi.walk import End
from tracelloc.files.dwarf import Chain
from tracelloc.files.dwarf.sourcelines import DwarfDecoder, open_decoder
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
from tracelloc.model.figures import U64
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
        others = (self._embedded, self._debug) if self._own_table is None else ()
        files = [self.elf, *(each for each in others if each is not None)]
        return [table for elf in files for table in elf.tables()]

    @cached_property
    def _table(self) -> SymbolTable:
        stubs = plt_functions(self.elf)
        return SymbolTable([*self._tables, *([RawTable.made_up(stubs)] if stubs else [])])

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


Records = npt.NDArray[np.void]

# A mapping of code, by address: the generation since which it is known to be there, the number of
# its file, and the offset in the file.
CODE_DTYPE: Final = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("since", "<i8"), ("file", "<i8"), ("offset", "<u8")]
)
GENERATED: Final = -1  # In place of a file's number: code without a file
UNREADABLE: Final = -2  # In place of a file's number: a file that can't be read


@cache
def miss_dtype(architecture: Architecture) -> np.dtype[Any]:
    """Returns the layout of a stack's head in a question.

    The head has registers, in the order of ``Architecture.miss_registers``, the generation, the
    address of the copied memory, a mask of missing pages, and how many bytes of it are sent.
    """
    return np.dtype([
        ("registers", "<u8", (len(architecture.miss_registers),)), ("generation", "<i8"),
        ("address", "<u8"), ("holes", "<u8"), ("size", "<i8"),
    ])  # fmt: skip


# Frames, end, number of guessed frames, and whether it met unmapped code, of each stack; then the
# addresses where rows were made during the walks, and these rows.
FinishedStacks = tuple[list[tuple[U64, End, int, bool]], U64, U64]


def _are_possible(found: FinishedStacks, limit: int, _: Records, heads: Records, __: bytes) -> bool:
    walks, addresses, rows = found
    return (
        len(walks) == len(heads)
        and all(0 < len(frames) <= limit for frames, *_ in walks)
        and len(addresses) == len(rows)
    )


class KnownFiles:
    """The files that a worker knows, by numbers that tracelloc chooses."""

    def __init__(self, architecture: Architecture | None = None) -> None:
        """``architecture``: of the stacks; None: this machine's."""
        self.architecture = architecture or native()
        self.by_number: dict[int, SymbolFileReader] = {}

    @question()
    def open_file(self, number: int, descriptor: Descriptor) -> None:
        self.by_number[number] = SymbolFileReader(ElfFile(descriptor.number))

    @question()
    def close_file(self, number: int) -> None:
        if (file := self.by_number.pop(number, None)) is not None:
            file.close()

    @question(_are_possible)
    def stacks(
        self,
        limit: int,
        mappings: Annotated[Records, CODE_DTYPE],
        heads: Annotated[Records, miss_dtype(native())],
        memory: bytes,
    ) -> FinishedStacks:
        """Unwinds call stacks, given ``heads`` and the copied ``memory`` of all stacks."""
        code = _MappedCode(self, mappings)
        at = 0
        walks = []
        for registers, generation, address, holes, size in heads.tolist():
            code.has_unmapped = False
            frames, end, guessed = unwind(
                dict(zip(self.architecture.miss_registers, registers, strict=True)),
                StackCopy(address, memory[at : at + size], holes),
                code.at(generation),
                limit=limit,
                architecture=self.architecture,
            )
            at += size
            walks.append((np.array(frames, np.uint64), end, guessed, code.has_unmapped))
        addresses = np.array(list(code.rows), np.uint64)
        return walks, addresses, np.array(list(code.rows.values()), np.uint64)


class _MappedCode:
    def __init__(self, files: KnownFiles, mappings: Records) -> None:
        self._files = files.by_number
        self._generated = built_in_rules(files.architecture).frame_pointer
        self._starts: list[int] = mappings["start"].tolist()
        self._mappings: list[tuple[int, int, int, int, int]] = mappings.tolist()
        self.rows: dict[int, int] = {}  # Rows made during the walks, by address
        self.has_unmapped = False

    def at(self, generation: int) -> Callable[[int], RuleSet | None]:
        """Returns a function from an address to its unwind rules in a generation of mappings."""
        return lambda address: self._look_up(address, generation)

    def _look_up(self, address: int, generation: int) -> RuleSet | None:
        """Returns an address's unwind rules; None if nothing is mapped there. Raises CfiError."""
        at = bisect_right(self._starts, address) - 1
        start, end, since, number, offset = self._mappings[at] if at >= 0 else (0,) * 5
        if address >= end:
            self.has_unmapped = True
            return None
        # Something else may have been mapped there in that generation.
        if since > generation:
            return None
        rules = self._generated
        if number != GENERATED:
            file = self._files.get(number)
            inside = None if file is None else file.elf.address_of(offset + address - start)
            if file is None or file.cfi is None or inside is None:
                return None  # The file can't be read, and a guess could be wrong
            rules = file.rules(inside)
        self.rows[address] = rules.row(address)
        return rules
