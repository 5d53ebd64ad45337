"""Readers of binary files (ELF, DWARF, machine code), which know nothing of processes."""
