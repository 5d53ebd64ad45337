# cython: language_level=3, cdivision=True
"""DWARF expressions, as far as call-frame information uses them. DWARF 5, section 2.5."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tracelloc.files.cfi.encoding cimport (
    Cursor, give_up, read_fixed, read_sleb, read_uleb,
)
from tracelloc.files.cfi.machine cimport REGISTERS
from tracelloc.files.cfi.programs cimport Expression

cdef enum:
    PAGE_BITS = 12
    MOST_STEPS = 1024
    DEEPEST = 64

cdef enum End:
    """The reason why a stack ends. Only stacks with ``OUTERMOST`` are complete."""
    GOES_ON
    OUTERMOST  # there is no caller
    LIMIT  # more frames than were asked for
    OUTSIDE_COPY  # memory that was not copied
    NO_MODULE  # an address where no file is mapped
    DAMAGED  # call-frame information that makes no sense
    UNKNOWN_REGISTER  # a register that was not recorded
    NO_PROGRESS  # a caller that is not further up the stack

cdef struct Memory:  # of a stack as it was
    uint64_t address
    const uint8_t* data
    uint64_t size
    uint64_t holes  # pages that are missing: a bit for each

cdef struct Registers:  # by DWARF number, as far as they are known
    uint64_t values[REGISTERS]
    uint64_t known  # a bit for each

cdef struct Operands:  # the machine's stack
    uint64_t values[DEEPEST + 1]
    int depth
    bint is_short  # more was taken than there was


cdef inline End read_word(const Memory* memory, uint64_t address, uint64_t* value) noexcept nogil:
    cdef uint64_t at = address - memory.address
    if memory.size < 8 or at > memory.size - 8:
        return OUTSIDE_COPY
    if (is_hole(memory, at >> PAGE_BITS) or is_hole(memory, at + 7 >> PAGE_BITS)):
        return OUTSIDE_COPY
    memcpy(value, memory.data + at, 8)
    return GOES_ON


cdef inline bint is_hole(const Memory* memory, uint64_t page) noexcept nogil:
    return page < 64 and memory.holes >> page & 1


cdef inline bint is_known(const Registers* registers, uint64_t number) noexcept nogil:
    return number < REGISTERS and registers.known >> number & 1


cdef inline void push(Operands* operands, uint64_t value) noexcept nogil:
    operands.values[operands.depth] = value  # one more than DEEPEST ends the expression
    operands.depth += 1


cdef inline uint64_t pick(Operands* operands, int below) noexcept nogil:
    """Returns the operand at a depth below the top of the stack."""
    if below >= operands.depth:
        operands.is_short = True
        return 0
    return operands.values[operands.depth - 1 - below]


cdef inline uint64_t pop(Operands* operands) noexcept nogil:
    cdef uint64_t value = pick(operands, 0)
    operands.depth -= not operands.is_short
    return value


cdef inline uint64_t divide(uint64_t a, uint64_t b) noexcept nogil:
    """Divides with sign, towards zero. The one quotient that overflows wraps around."""
    return -a if b == ~<uint64_t>0 else <uint64_t>(<int64_t>a // <int64_t>b)


cdef inline uint64_t calculate(int operation, uint64_t a, uint64_t b) noexcept nogil:
    """Returns the result of an operation on the entry below the top, and the top; not by 0."""
    cdef int64_t x = <int64_t>a, y = <int64_t>b
    if operation == 0x1A:
        return a & b
    if operation == 0x1B:
        return divide(a, b)
    if operation == 0x1C:
        return a - b
    if operation == 0x1D:
        return a % b
    if operation == 0x1E:
        return a * b
    if operation == 0x21:
        return a | b
    if operation == 0x22:
        return a + b
    if operation == 0x24:
        return a << b if b < 64 else 0
    if operation == 0x25:
        return a >> b if b < 64 else 0
    if operation == 0x26:
        return <uint64_t>(x >> (b if b < 63 else 63))
    if operation == 0x27:
        return a ^ b
    if operation == 0x29:
        return a == b
    if operation == 0x2A:
        return x >= y
    if operation == 0x2B:
        return x > y
    if operation == 0x2C:
        return x <= y
    if operation == 0x2D:
        return x < y
    return a != b  # 0x2E


cdef inline uint64_t read_constant(Cursor* code, int operation) noexcept nogil:
    """Reads the operand of const1u (0x08) to const8s (0x0F), unsigned and signed by turns."""
    cdef uint64_t value = read_fixed(code, 1 << ((operation - 0x08) >> 1))
    if operation == 0x09:
        return <uint64_t><int64_t><int8_t>value
    if operation == 0x0B:
        return <uint64_t><int64_t><int16_t>value
    if operation == 0x0D:
        return <uint64_t><int64_t><int32_t>value
    return value


cdef inline void move(Operands* operands, Cursor* code, int operation) noexcept nogil:
    """Executes dup, drop, over, pick, swap or rot: 0x12 to 0x17."""
    cdef uint64_t a, b, c
    if operation == 0x12 or operation == 0x14:
        push(operands, pick(operands, operation == 0x14))
    elif operation == 0x13:
        pop(operands)
    elif operation == 0x15:
        push(operands, pick(operands, <int>read_fixed(code, 1)))
    else:
        a, b = pop(operands), pop(operands)
        if operation == 0x16:
            push(operands, a)
            push(operands, b)
        else:
            c = pop(operands)
            push(operands, a)
            push(operands, c)
            push(operands, b)


cdef inline End carry_out(
    Operands* operands, Cursor* code, const Registers* registers, const Memory* memory
) noexcept nogil:
    cdef int operation = <int>read_fixed(code, 1)
    cdef uint64_t value = 0, top
    cdef int64_t distance
    cdef End end = GOES_ON
    if 0x30 <= operation <= 0x4F:  # lit0-31
        push(operands, <uint64_t>operation - 0x30)
    elif 0x70 <= operation <= 0x8F or operation == 0x92:  # breg0-31, bregx
        value = read_uleb(code) if operation == 0x92 else <uint64_t>operation - 0x70
        distance = read_sleb(code)
        if not is_known(registers, value):
            return DAMAGED if code.is_damaged else UNKNOWN_REGISTER
        push(operands, registers.values[value] + <uint64_t>distance)
    elif 0x1A <= operation <= 0x1E or operation == 0x21 or operation == 0x22 \
            or 0x24 <= operation <= 0x27 or 0x29 <= operation <= 0x2E:
        top = pop(operands)
        value = pop(operands)
        if top == 0 and (operation == 0x1B or operation == 0x1D):
            return DAMAGED
        push(operands, calculate(operation, value, top))
    elif operation == 0x19:  # abs
        value = pop(operands)
        push(operands, -value if <int64_t>value < 0 else value)
    elif operation == 0x1F:  # neg
        push(operands, -pop(operands))
    elif operation == 0x20:  # not
        push(operands, ~pop(operands))
    elif 0x08 <= operation <= 0x0F:
        push(operands, read_constant(code, operation))
    elif operation == 0x10:  # constu
        push(operands, read_uleb(code))
    elif operation == 0x11:  # consts
        push(operands, <uint64_t>read_sleb(code))
    elif operation == 0x23:  # plus_uconst
        value = read_uleb(code)
        push(operands, pop(operands) + value)
    elif operation == 0x06 or operation == 0x94:  # deref, deref_size
        top = 8 if operation == 0x06 else read_fixed(code, 1)
        if not 1 <= top <= 8:
            return DAMAGED
        value = pop(operands)
        if operands.is_short:
            return DAMAGED
        end = read_word(memory, value, &value)
        push(operands, value & (~<uint64_t>0 >> (64 - 8 * top)))
    elif 0x12 <= operation <= 0x17:
        move(operands, code, operation)
    elif operation == 0x28 or operation == 0x2F:  # bra, skip
        distance = <int16_t>read_fixed(code, 2)
        if operation == 0x2F or pop(operands):
            distance += code.at
            if distance < 0 or distance > code.end:
                give_up(code)
            else:
                code.at = distance
    elif operation != 0x96:  # nop
        return DAMAGED
    return end


cdef inline End evaluate(
    Expression expression, const Registers* registers, const Memory* memory,
    const uint64_t* first, uint64_t* result,
) noexcept nogil:
    """Evaluates an expression. Returns the reason if it has no result.

    ``first`` is pushed before the start: the CFA in rules of registers.
    """
    cdef Operands operands
    cdef Cursor code
    cdef End end
    cdef int step
    operands.depth, operands.is_short = 0, False
    if first:
        push(&operands, first[0])
    code.data, code.at, code.end, code.is_damaged = expression.code, 0, expression.size, False
    for step in range(MOST_STEPS):
        if code.at == code.end:
            result[0] = pick(&operands, 0)
            return DAMAGED if operands.is_short else GOES_ON
        end = carry_out(&operands, &code, registers, memory)
        if end != GOES_ON:
            return end
        if code.is_damaged or operands.is_short or operands.depth > DEEPEST:
            return DAMAGED
    return DAMAGED
