# cython: language_level=3, cdivision=True
"""Rows: the rules at one address in 64 bits, for the probes. The layout is that of probes/row.h."""

from libc.stdint cimport uint64_t

from tracelloc.files.cfi.encodearm cimport encode_aarch64
from tracelloc.files.cfi.encodex86 cimport encode_x86_64
from tracelloc.files.cfi.programs cimport Rules


cdef inline uint64_t encode(const Rules* rules, uint64_t at) noexcept nogil:
    """Returns the row for rules at an address; it may only have the reason why there is none."""
    if rules.machine.has_link_register:
        return encode_aarch64(rules)
    return encode_x86_64(rules, at)
