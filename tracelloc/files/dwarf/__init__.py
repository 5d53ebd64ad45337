"""Source lines and inlined functions of code addresses, from DWARF 2 to 5.

``SourceLines`` is the entry point: for one file, it returns chains of source frames. It needs only
``tracelloc.files.elf``. Each module has one concern, and imports only those listed before it::

    forms        how numbers, strings and attribute values are encoded, the bound on work
    abbrev       abbreviation tables: what the entries (DIEs) of a unit look like
    info         the sections of a file, and its units
    ranges       address ranges of units and functions, which unit covers an address
    lineheader   file names of a line program
    lineprogram  its rows, one sequence at a time: address to file and line
    inlines      functions and what was inlined into them
    decoder      chains of source frames from what one file has itself
    sourcelines  chains from anywhere: an llvm-symbolizer for what lies in .dwo and .dwp files

Everything is decoded on demand: a unit when an address in it is looked up, and of the unit only
the line sequences and the functions that contain such addresses.

Addresses are the file's own virtual addresses. "DWARF 5, 7.5" in comments is a section of
the DWARF Debugging Information Format, version 5.
"""

from tracelloc.files.dwarf.lineprogram import Chain, SourceFrame
from tracelloc.files.dwarf.sourcelines import SourceLines

__all__ = ["Chain", "SourceFrame", "SourceLines"]
