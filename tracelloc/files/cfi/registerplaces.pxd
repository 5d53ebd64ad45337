# cython: language_level=3, cdivision=True
"""Expressions and rules that name a place at a distance from a register."""

from libc.stdint cimport int64_t

from tracelloc.files.cfi.encoding cimport Cursor, read_sleb
from tracelloc.files.cfi.programs cimport RULE_EXPRESSION, Expression, Rule, expression_in

cdef enum:
    DEREF = 0x06


cdef inline bint is_based(
    Expression expression, int base, bint is_read, int64_t* number
) noexcept nogil:
    """Whether an expression is nothing but ``breg N``, with ``deref`` behind it if ``is_read``."""
    cdef Cursor cursor
    cdef int64_t size = expression.size - is_read
    if size < 2 or expression.code[0] != base or is_read and expression.code[size] != DEREF:
        return False
    cursor.data, cursor.at, cursor.end, cursor.is_damaged = expression.code, 1, size, False
    number[0] = read_sleb(&cursor)
    return cursor.at == size and not cursor.is_damaged


cdef inline bint is_saved(const Rule* rule, int base, int64_t place) noexcept nogil:
    """Whether a rule is the kernel's for a register that a signal frame saves at a place."""
    cdef int64_t number
    return (
        rule.how == RULE_EXPRESSION and is_based(expression_in(rule), base, False, &number)
        and number == place
    )
