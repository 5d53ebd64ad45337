# cython: language_level=3, cdivision=True
"""The programs of many functions of one section, run one after the other."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from tracelloc.files.cfi.encode cimport encode
from tracelloc.files.cfi.entries cimport Fde, Section, read_fde
from tracelloc.files.cfi.programs cimport (
    MOST_REMEMBERED, Program, State, begin_program, run_cie, run_to,
)
from tracelloc.files.cfi.row cimport ROW_REASON_TOO_LONG, unencodable

cdef enum:
    CIES = 16  # whose states are kept; files have a handful
    SPARE_BYTES = 1 << 16

cdef struct Known:
    int64_t offset  # of the CIE
    int failure
    State initial

cdef struct Run:  # of many programs
    const Section* section
    State* remembered
    int64_t budget  # bytes
    Known cies[CIES]
    Fde fde
    Program program


cdef inline Run* new_run(const Section* section) noexcept nogil:
    """Allocates a run of programs of one section; NULL if out of memory."""
    cdef Run* run = <Run*>malloc(sizeof(Run))
    cdef State* remembered = <State*>malloc(MOST_REMEMBERED * sizeof(State))
    cdef int at
    if not run or not remembered:
        free(run)
        free(remembered)
        return NULL
    run.section, run.remembered = section, remembered
    # Programs overlap only in files made to waste time.
    run.budget = 2 * section.size + SPARE_BYTES
    for at in range(CIES):
        run.cies[at].offset = -1
    return run


cdef inline void end_run(Run* run) noexcept nogil:
    free(run.remembered)
    free(run)


cdef inline int begin_fde(Run* run, int64_t offset, int* program_failure) noexcept nogil:
    """Reads an FDE and gets its program ready. Returns a reason, if the FDE can't be read, or 0.

    ``program_failure`` is the reason why the program has no state to start from, or 0.
    """
    cdef Fde* fde = &run.fde
    cdef Known* known
    cdef int failure = read_fde(run.section, offset, fde)
    if failure:
        return failure
    run.budget -= fde.end - fde.start
    known = &run.cies[(fde.cie.offset >> 2) % CIES]
    if known.offset != fde.cie.offset:
        run.budget -= fde.cie.end - fde.cie.start
        known.offset = fde.cie.offset
        known.failure = run_cie(run.section, &fde.cie, &known.initial, run.remembered)
    if run.budget < 0:
        return ROW_REASON_TOO_LONG
    program_failure[0] = known.failure
    begin_program(&run.program, run.section, fde, &known.initial, run.remembered)
    return 0


cdef inline uint64_t next_row(Run* run, int* failure, uint64_t at) noexcept nogil:
    """Returns the row at an address of the function; addresses must ascend."""
    if not failure[0]:
        failure[0] = run_to(&run.program, at - run.fde.address)
    if failure[0]:
        return unencodable(failure[0])
    return encode(&run.program.rules, at)


cdef inline void find_rows(
    Run* run, const uint64_t* starts, const int64_t* offsets, Py_ssize_t count,
    const uint64_t* wanted, uint64_t* found, Py_ssize_t wanted_count,
) noexcept nogil:
    """Fills in the rows of sorted addresses that have none yet (0), function by function."""
    cdef Py_ssize_t at = 0, function = -1, first, last, middle
    cdef uint64_t limit, start
    cdef int failure, program_failure
    while at < wanted_count:
        if found[at]:
            at += 1
            continue
        # The last function that starts at or before the address.
        first, last = function + 1, count
        while first < last:
            middle = first + (last - first) // 2
            if starts[middle] <= wanted[at]:
                first = middle + 1
            else:
                last = middle
        function = first - 1
        limit = starts[first] if first < count else ~<uint64_t>0
        if function < 0:
            at += 1
            continue
        program_failure = 0
        failure = begin_fde(run, offsets[function], &program_failure)
        start = run.fde.address
        while at < wanted_count and wanted[at] < limit:
            if failure:
                if not found[at]:
                    found[at] = unencodable(failure)
            elif wanted[at] >= start and wanted[at] - start < run.fde.size and not found[at]:
                found[at] = next_row(run, &program_failure, wanted[at])
            at += 1
        if limit == ~<uint64_t>0:
            return  # what is left is that address itself, which no function covers
