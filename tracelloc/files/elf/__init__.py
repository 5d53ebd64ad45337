"""ELF files: their contents and layout, and their function symbols."""

from tracelloc.files.elf.file import ElfFile, NotElfError
from tracelloc.files.elf.headers import Segment
from tracelloc.files.elf.symtab import RawTable, Symbol, SymbolTable

__all__ = ["ElfFile", "NotElfError", "RawTable", "Segment", "Symbol", "SymbolTable"]
