# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Dominators: node A dominates node B if every path from the top to B leads through A.

The algorithm is the simple one of Lengauer and Tarjan (*A fast algorithm for finding dominators in
a flowgraph*, 1979): O(m log n), also for what breaks iterative algorithms, as a doubly linked
list of which both ends are known. Without recursion: a list may have millions of nodes.

After the depth-first search, nodes go by their numbers in its order, in which parents and
dominators come before what they lead to; so memory is accessed mostly in order.

Some successors of the top are *borrowers*: they lead, directly or through others, only to what no
successor before them leads to.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc

from tracelloc.record.reachability.blockindex cimport prefetch

cdef enum:
    AHEAD = 8

cdef uint32_t NONE = 0xFFFFFFFF

ctypedef fused Sum:
    uint32_t
    uint64_t


cdef struct Cross:
    uint32_t target
    uint32_t source


cdef struct Crossings:
    Cross* found
    Py_ssize_t count
    Py_ssize_t room


cdef inline bint add_crossing(Crossings* some, uint32_t target, uint32_t source) noexcept nogil:
    cdef Cross* grown
    cdef Py_ssize_t wider
    if some.count == some.room:
        wider = max(<Py_ssize_t>1024, some.room + (some.room >> 1))
        grown = <Cross*>realloc(some.found, wider * sizeof(Cross))
        if not grown:
            return False
        some.found, some.room = grown, wider
    some.found[some.count].target = target
    some.found[some.count].source = source
    some.count += 1
    return True


cdef Py_ssize_t search_depth_first(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    uint32_t top,
    const uint8_t[::1] borrowers,
    uint32_t[::1] number,
    uint32_t* order,
    uint32_t* parent,
    uint32_t* cursor,
    uint64_t* seen,
    Crossings* crossings,
) noexcept nogil:
    """Numbers the nodes that can be reached; returns how many; -1 if there is no memory.

    ``seen``: a bit per node, all 0; unlike ``number``, it mostly fits into the processor's cache.
    """
    cdef uint32_t at = 0, other, count = 1, edge, end
    cdef uint32_t borrowed = 0  # numbers below this one
    cdef uint32_t first_borrower = <uint32_t>(number.shape[0] - borrowers.shape[0])
    number[top], order[0], parent[0], cursor[0] = 0, top, 0, begins[top]
    seen[top >> 6] |= <uint64_t>1 << (top & 63)
    while True:
        edge, end = cursor[at], begins[order[at] + 1]
        while edge < end:
            other = targets[edge]
            edge += 1
            if not seen[other >> 6] >> (other & 63) & 1:
                break
            if number[other] == at or number[other] < borrowed:
                continue
            if not add_crossing(crossings, number[other], at):
                return -1
        else:
            if at == 0:
                return count
            cursor[at] = end
            at = parent[at]
            continue
        cursor[at] = edge
        seen[other >> 6] |= <uint64_t>1 << (other & 63)
        if at == 0 and other >= first_borrower and borrowers[other - first_borrower]:
            borrowed = count
        number[other], order[count], parent[count] = count, other, at
        cursor[count] = begins[other]
        at = count
        count += 1
        for edge in range(begins[other], min(begins[other + 1], begins[other] + 4)):
            prefetch(&begins[targets[edge]])


cdef inline uint32_t evaluate(
    uint32_t node, uint32_t linked, uint32_t* ancestor, uint32_t* label, const uint32_t* semi
) noexcept nogil:
    """The node with the least semidominator on the path to the root of its tree of ``linked``
    nodes: those from this number on. Compresses the path.
    """
    cdef uint32_t at = node, before = NONE, following, root
    while ancestor[at] >= linked:
        # The way back is kept in place of the path, which is set below.
        following = ancestor[at]
        ancestor[at], before, at = before, at, following
    root = ancestor[at]
    while before != NONE:
        following, before = before, ancestor[before]
        if semi[label[at]] < semi[label[following]]:
            label[following] = label[at]
        ancestor[following] = root
        at = following
    return label[node]


cdef void find_dominators(
    uint32_t count,
    uint32_t* ancestor,
    uint32_t* semi,
    uint32_t* label,
    uint32_t* begins,
    const uint32_t* sources,
    uint32_t* dominator,
) noexcept nogil:
    """Fills in the dominator of each number; ``ancestor`` holds the parents.

    Until a number has a dominator, ``dominator`` holds the first of those that it is the
    semidominator of; ``begins``, once it is not needed any more, leads to the next one.
    """
    cdef uint32_t node, other, least, up, at, begin, end = begins[count]
    cdef uint32_t* following = begins
    for node in range(count):
        semi[node], label[node], dominator[node] = ancestor[node], node, NONE
    for node in range(count - 1, 0, -1):
        least = ancestor[node]
        begin = begins[node]
        for at in range(begin, end):
            other = sources[at]
            if other > node:
                other = semi[evaluate(other, node + 1, ancestor, label, semi)]
            least = min(least, other)
        end = begin
        semi[node] = least
        up = ancestor[node]
        following[node] = dominator[least]
        dominator[least] = node
        at = dominator[up]
        dominator[up] = NONE
        while at != NONE:
            other = evaluate(at, node, ancestor, label, semi)
            dominator[at] = other if semi[other] < semi[at] else up
            at = following[at]
    dominator[0] = 0
    for node in range(1, count):
        if dominator[node] != semi[node]:
            dominator[node] = dominator[dominator[node]]


def dominate(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    uint32_t top,
    const uint8_t[::1] borrowers,
    uint32_t[::1] number,
    uint32_t[::1] order,
    uint32_t[::1] dominator,
):
    """Numbers the nodes that can be reached from ``top``, and finds their dominators.

    Node n leads to ``targets[begins[n]:begins[n + 1]]``. ``borrowers``: whether the last nodes are.
    Fills in the number of each node, or
    0xFFFFFFFF; the node of each number; and the number that dominates each number, which is
    lower, except for the top's own, 0. Returns how many nodes can be reached.
    """
    cdef Py_ssize_t nodes = number.shape[0], count = 0, at
    cdef Crossings crossings
    cdef uint32_t* parent = <uint32_t*>malloc(nodes * 4)
    cdef uint32_t* cursor = <uint32_t*>malloc(nodes * 4)
    cdef uint64_t* seen = <uint64_t*>calloc(nodes // 64 + 1, 8)
    cdef uint32_t* heads = NULL
    cdef uint32_t* sources = NULL
    crossings.found, crossings.count, crossings.room = NULL, 0, 0
    try:
        if not parent or not cursor or not seen:
            raise MemoryError
        with nogil:
            for at in range(nodes):
                number[at] = NONE
            count = search_depth_first(
                begins, targets, top, borrowers, number, &order[0], parent, cursor, seen,
                &crossings,
            )
        if count < 0:
            raise MemoryError
        heads = <uint32_t*>calloc(count + 2, 4)
        sources = <uint32_t*>malloc(crossings.count * 4 + 4)
        if not heads or not sources:
            raise MemoryError
        with nogil:
            for at in range(crossings.count):
                heads[crossings.found[at].target + 2] += 1
            for at in range(2, count + 2):
                heads[at] += heads[at - 1]
            for at in range(crossings.count):
                sources[heads[crossings.found[at].target + 1]] = crossings.found[at].source
                heads[crossings.found[at].target + 1] += 1
            free(crossings.found)
            crossings.found = NULL
            # For millions of nodes, each array counts: two have another purpose meanwhile.
            find_dominators(
                <uint32_t>count, parent, cursor, &number[0], heads, sources, &dominator[0]
            )
            for at in range(nodes):
                number[at] = NONE
            for at in range(count):
                number[order[at]] = <uint32_t>at
        return count
    finally:
        free(crossings.found)
        free(parent)
        free(cursor)
        free(seen)
        free(heads)
        free(sources)


def renumber(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    const uint8_t[::1] borrowers,
    const uint32_t[::1] number,
    const uint32_t[::1] order,
    uint32_t[::1] new_begins,
    uint32_t[::1] new_targets,
):
    """Fills in the reached graph by numbers, without borrowed pointers; returns how many."""
    cdef Py_ssize_t at, count = order.shape[0]
    cdef uint32_t node, edge, other, n = 0, borrowed = 0
    cdef uint32_t first_borrower = <uint32_t>(number.shape[0] - borrowers.shape[0])
    with nogil:
        for at in range(count):
            # Nodes lie anywhere: what comes next is loaded meanwhile.
            if at + 3 * AHEAD < count:
                prefetch(&begins[order[at + 3 * AHEAD]])
                prefetch(&targets[begins[order[at + 2 * AHEAD]]])
                node = order[at + AHEAD]
                for edge in range(begins[node], min(begins[node + 1], begins[node] + 4)):
                    prefetch(&number[targets[edge]])
            node = order[at]
            if node >= first_borrower and borrowers[node - first_borrower]:
                borrowed = <uint32_t>at
            new_begins[at] = n
            for edge in range(begins[node], begins[node + 1]):
                other = number[targets[edge]]
                if other >= borrowed:
                    new_targets[n] = other
                    n += 1
        new_begins[count] = n
    return n


def sum_up(const uint32_t[::1] dominator, Sum[::1] values):
    """Replaces values by the sums of all that each number dominates, itself included."""
    cdef Py_ssize_t at
    with nogil:
        for at in range(values.shape[0] - 1, 0, -1):
            values[dominator[at]] += values[at]


def place(const uint32_t[::1] dominator, const Sum[::1] counts, uint32_t[::1] places):
    """Fills in places such that the numbers that n dominates, and only these, have places from
    ``places[n]`` up to ``places[n] + counts[n]``. ``counts``: how many they are.
    """
    cdef Py_ssize_t at, count = places.shape[0]
    cdef uint32_t up
    cdef uint32_t* following = <uint32_t*>calloc(count + 1, 4)
    if not following:
        raise MemoryError
    with nogil:
        following[0] = 1
        for at in range(1, count):
            up = dominator[at]
            places[at] = following[up]
            following[up] += <uint32_t>counts[at]
            following[at] = places[at] + 1
    free(following)


def heirs(const uint32_t[::1] dominator, uint32_t[::1] heir):
    """Replaces entries of ``heir`` that are 0xFFFFFFFF by the nearest dominator's entry."""
    cdef Py_ssize_t at
    with nogil:
        for at in range(1, heir.shape[0]):
            if heir[at] == NONE:
                heir[at] = heir[dominator[at]]
