"""All that is known of one mapped file's functions: names from wherever they are."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tracelloc.dwarf.lines import SourceFrame
from tracelloc.dwarf.source import SourceLines
from tracelloc.elf import ElfFile, RawTable, SymbolTable
from tracelloc.elf.debugfiles import DebugFile, embedded_symbols, find_debug_file
from tracelloc.elf.plt import plt_functions
from tracelloc.elf.sections import SectionError
from tracelloc.target.allocators import Module


class ModuleSymbols:
    """Loads what is asked for, once. Safe to use from several threads."""

    def __init__(self, module: Module, roots: Sequence[Path]) -> None:
        """``roots``: directories that stand for ``/`` when debug files are searched."""
        self.module = module
        self.troubles: list[str] = []
        """Debug files that were found and don't fit, for people."""
        self._roots = roots
        self._lock = threading.RLock()

    @property
    def _elf(self) -> ElfFile:
        return self.module.elf

    @cached_property
    def own_table(self) -> RawTable | None:
        """The file's full symbol table, which stripping takes away."""
        return self._elf.table(".symtab")

    @cached_property
    def embedded(self) -> ElfFile | None:
        """The file within ``.gnu_debugdata``."""
        return embedded_symbols(self._elf)

    @cached_property
    def debug_file(self) -> DebugFile | None:
        """Its separate debug file."""
        with self._lock:
            return find_debug_file(self._elf, self.module.path, self._roots, self.troubles)

    @cached_property
    def table(self) -> SymbolTable:
        """Every function that has a name, PLT stubs included."""
        with self._lock:
            tables = list(self._elf.tables())
            if self.own_table is None:
                if self.embedded is not None:
                    tables.extend(self.embedded.tables())
                if self.debug_file is not None:
                    tables.extend(self.debug_file.elf.tables())
            stubs = plt_functions(self._elf)
            if stubs:
                tables.append(RawTable.made_up(stubs))
            return SymbolTable(tables)

    @cached_property
    def lines(self) -> SourceLines:
        """Lines and inlined functions, from the file itself or its debug file."""
        with self._lock:
            debug = self.debug_file
            return SourceLines(self._elf, None if debug is None else debug.elf)

    @cached_property
    def has_own_lines(self) -> bool:
        """Whether the mapped file itself has debug information."""
        return _has_lines(self._elf)

    @cached_property
    def may_have_lines(self) -> bool:
        """Whether there is any debug information at all."""
        debug = self.debug_file
        return self.has_own_lines or (debug is not None and _has_lines(debug.elf))

    def chains(self, addresses: Sequence[int]) -> list[tuple[SourceFrame, ...]]:
        """Per address of the file's own: its inlined functions and their function."""
        return self.lines.chains(addresses)

    def close(self) -> None:
        """Closes what was opened for it; not the mapped file itself."""
        if "lines" in self.__dict__:
            self.lines.close()
        for name in ("embedded", "debug_file"):
            opened = self.__dict__.get(name)
            if opened is not None:
                (opened.elf if isinstance(opened, DebugFile) else opened).close()


def _has_lines(elf: ElfFile) -> bool:
    try:
        return elf.open_section(".debug_line") is not None
    except SectionError:
        return False
