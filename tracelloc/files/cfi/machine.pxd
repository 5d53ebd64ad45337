# cython: language_level=3
"""Registers of an architecture, for compiled code: ``DwarfRegisters`` of its description."""

from libc.stdint cimport uint64_t

cdef enum:
    REGISTERS = 34  # room for the rules of all architectures; vector registers lead to no caller

cdef struct Machine:
    uint64_t count  # rules are kept for the registers below
    uint64_t sp
    uint64_t fp
    uint64_t ip  # the address of execution
    uint64_t callee_saved  # a bit for each
    uint64_t return_address_mask  # its other bits may authenticate it
    # A call leaves the return address in a register, and instructions have 4 bytes.
    bint has_link_register
