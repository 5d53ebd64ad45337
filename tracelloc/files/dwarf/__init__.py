"""Source lines and inlined functions of code addresses, from DWARF 2 to 5.

``SourceLines`` is the entry point: it returns the chains of source frames of one file. The package
needs only ``tracelloc.files.elf``. Each module imports only those before it: forms, abbrev, info,
ranges, lineheader, lineprogram, inlines, variables, decoder, sourcelines.

Everything is decoded on demand: a unit when an address in it is looked up, and only those of its
line sequences and functions that contain such addresses.

Addresses are the file's own virtual addresses. In comments, "DWARF 5, 7.5" refers to section 7.5
of the DWARF Debugging Information Format, version 5.
"""

from tracelloc.files.dwarf.lineprogram import Chain, SourceFrame
from tracelloc.files.dwarf.sourcelines import SourceLines

__all__ = ["Chain", "SourceFrame", "SourceLines"]
