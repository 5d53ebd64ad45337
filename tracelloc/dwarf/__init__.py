"""Source lines and inlined functions of code addresses, from DWARF 2 to 5.

Each module has one concern, and knows only those before it::

    reader       numbers and strings out of bytes, the one error, the bound on work
    forms        how attribute values are encoded
    abbrev       abbreviation tables: what the entries (DIEs) of a unit look like
    info         the sections of a file, and its units
    ranges       address ranges of units and functions
    index        which unit covers an address
    lineheader   file names of a line program
    lineprogram  its rows, one sequence at a time
    lines        address to file and line
    inlines      functions and what was inlined into them
    pipe         an llvm-symbolizer, for what lies in other files (.dwo, .dwp)
    source       chains of source frames: all of it for one file

Nothing is decoded before it is asked for: a unit when an address lies in it, of its line
program only the sequences, of its entries only the functions that are looked up.

Addresses are the file's own virtual addresses. "DWARF 5, 7.5" in comments is a section of
the DWARF Debugging Information Format, version 5.
"""
