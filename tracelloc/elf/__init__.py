"""ELF files: what is in them and where, and the functions they name."""

from tracelloc.elf.file import ElfFile, NotElfError
from tracelloc.elf.segments import Segment
from tracelloc.elf.symtab import RawTable, Symbol, SymbolTable

__all__ = ["ElfFile", "NotElfError", "RawTable", "Segment", "Symbol", "SymbolTable"]
