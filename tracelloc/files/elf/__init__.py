"""ELF files: what is in them and where, and the functions they name."""

from tracelloc.files.elf.file import ElfFile, NotElfError
from tracelloc.files.elf.segments import Segment
from tracelloc.files.elf.symtab import RawTable, Symbol, SymbolTable

__all__ = ["ElfFile", "NotElfError", "RawTable", "Segment", "Symbol", "SymbolTable"]
