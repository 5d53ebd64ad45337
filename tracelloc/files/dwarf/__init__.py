"""Source lines and inlined functions of code addresses, from DWARF 2 to 5.

``SourceLines`` is the entry point: it returns the chains of source frames of one file. The package
needs only ``tracelloc.files.elf``. Each module imports only those listed before it::

    forms        encodings of numbers, strings and attribute values; the limit on work
    abbrev       abbreviation tables: the formats of a unit's entries (DIEs)
    info         the debug sections of a file, and the units in them
    ranges       address ranges of units and functions; lookup of units by address
    lineheader   headers of line programs, with their file names
    lineprogram  rows of line programs, one sequence at a time: address to file and line
    inlines      functions and their inlined calls
    decoder      chains of source frames from the file's own debug information
    sourcelines  chains from all sources: llvm-symbolizer reads .dwo and .dwp files

Everything is decoded on demand: a unit when an address in it is looked up, and only those of its
line sequences and functions that contain such addresses.

Addresses are the file's own virtual addresses. In comments, "DWARF 5, 7.5" refers to section 7.5
of the DWARF Debugging Information Format, version 5.
"""

from tracelloc.files.dwarf.lineprogram import Chain, SourceFrame
from tracelloc.files.dwarf.sourcelines import SourceLines

__all__ = ["Chain", "SourceFrame", "SourceLines"]
