# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Shortest paths from roots to blocks, folded: a run of nodes of one kind is one step.

A *fold* is a sequence of kinds, the one of a root first: the path to a list's thousandth node has
the same fold as the path to its second one. Folds form a tree, and each node has one fold.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from tracelloc.record.reachability.blockindex cimport prefetch

cdef enum:
    AHEAD = 8
    MOST_STEPS = 24
    LONGEST_PERIOD = 4
    MOST_FOLDS = 1 << 20
    SMALL_KINDS = 1 << 16  # numbers of 8 bytes

cdef uint32_t NONE = 0xFFFFFFFF
cdef uint32_t MANY = 0xFFFFFFFE

ANY_KIND = 0xFFFFFFFE
"""The kind of the last step of a fold with too many steps: it holds all that follow."""


def follow(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    uint32_t top,
    const uint32_t[::1] firsts,
    uint32_t[::1] parent,
    uint32_t[::1] order,
    Py_ssize_t count,
):
    """Follows pointers from some nodes, the nearest first, to nodes that have no parent yet.

    Node n leads to ``targets[begins[n]:begins[n + 1]]``. ``parent``: 0xFFFFFFFF if a node has
    none; the parent of ``firsts`` is ``top``. Adds what it finds to ``order``, which has ``count``
    entries before. Returns how many it has then.
    """
    cdef Py_ssize_t at, last = count
    cdef uint32_t node, edge, other
    with nogil:
        for at in range(firsts.shape[0]):
            if parent[firsts[at]] == NONE:
                parent[firsts[at]] = top
                order[last] = firsts[at]
                last += 1
        at = count
        while at < last:
            # Nodes lie anywhere: what comes next is loaded meanwhile.
            if at + 3 * AHEAD < last:
                prefetch(&begins[order[at + 3 * AHEAD]])
                prefetch(&targets[begins[order[at + 2 * AHEAD]]])
                prefetch(&parent[targets[begins[order[at + AHEAD]]]])
            node = order[at]
            at += 1
            for edge in range(begins[node], begins[node + 1]):
                other = targets[edge]
                if parent[other] == NONE:
                    parent[other] = node
                    order[last] = other
                    last += 1
    return last


def pointers_to(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    const uint8_t[::1] wanted,
    uint32_t[::1] sources,
    uint32_t[::1] found,
):
    """Finds pointers to wanted nodes, as far as they fit; returns how many, or one more."""
    cdef Py_ssize_t node, n = 0
    cdef uint32_t edge
    with nogil:
        for node in range(begins.shape[0] - 1):
            for edge in range(begins[node], begins[node + 1]):
                if wanted[targets[edge]]:
                    if n < sources.shape[0]:
                        sources[n], found[n] = <uint32_t>node, targets[edge]
                    n += 1
                    if n > sources.shape[0]:
                        break
            if n > sources.shape[0]:
                break
    return n


cdef inline bint resize(uint32_t** column, Py_ssize_t room) noexcept nogil:
    cdef uint32_t* grown = <uint32_t*>realloc(column[0], room * 4)
    if grown:
        column[0] = grown
    return grown != NULL


cdef class Folds:
    """All folds (paths of kinds) of one graph; number 0 is the empty fold."""

    cdef uint32_t* parents
    cdef uint32_t* kinds
    cdef uint32_t* steps
    cdef readonly Py_ssize_t count
    """Number of folds."""
    cdef Py_ssize_t room
    cdef uint32_t* table  # numbers of folds by what they are made of; 0: nothing
    cdef uint64_t table_mask
    cdef bint is_out_of_memory

    def __cinit__(self):
        self.room, self.table_mask = 1 << 10, (1 << 12) - 1
        self.parents = <uint32_t*>malloc(self.room * 4)
        self.kinds = <uint32_t*>malloc(self.room * 4)
        self.steps = <uint32_t*>malloc(self.room * 4)
        self.table = <uint32_t*>calloc(self.table_mask + 1, 4)
        if not self.parents or not self.kinds or not self.steps or not self.table:
            raise MemoryError
        self.parents[0], self.kinds[0], self.steps[0] = 0, NONE, 0
        self.count = 1

    def __dealloc__(self):
        free(self.parents)
        free(self.kinds)
        free(self.steps)
        free(self.table)

    def fold(
        self,
        const uint32_t[::1] order,
        const uint32_t[::1] parent,
        const uint32_t[::1] kinds,
        uint32_t[::1] folds,
    ):
        """Fills in the fold of each node, parents first. ``folds`` is all 0."""
        cdef Py_ssize_t at
        cdef uint32_t node
        with nogil:
            for at in range(order.shape[0]):
                if at + AHEAD < order.shape[0]:
                    prefetch(&folds[parent[order[at + AHEAD]]])
                    prefetch(&kinds[order[at + AHEAD]])
                node = order[at]
                folds[node] = self.after(folds[parent[node]], kinds[node])
        if self.is_out_of_memory:
            raise MemoryError

    def extend(self, uint32_t[::1] folds, const uint32_t[::1] kinds):
        """Replaces each fold by the fold with one more node of a kind."""
        cdef Py_ssize_t at
        with nogil:
            for at in range(folds.shape[0]):
                folds[at] = self.after(folds[at], kinds[at])
        if self.is_out_of_memory:
            raise MemoryError

    def path(self, uint32_t fold):
        """Returns the folds on the way to a fold, each one step longer, with the fold itself."""
        found = []
        while fold:
            found.append(fold)
            fold = self.parents[fold]
        return found[::-1]

    def roots(self, uint32_t first, uint32_t[::1] found):
        """Fills in the root of each fold: its last kind from ``first`` on, less ``first``."""
        cdef Py_ssize_t fold
        found[0] = NONE
        for fold in range(1, self.count):
            if first <= self.kinds[fold] < MANY:
                found[fold] = self.kinds[fold] - first
            else:
                found[fold] = found[self.parents[fold]]

    def kind(self, uint32_t fold):
        """Returns the kind of a fold's last step."""
        return self.kinds[fold]

    cdef inline uint32_t after(self, uint32_t fold, uint32_t kind) noexcept nogil:
        cdef uint64_t at
        cdef uint32_t found
        if self.kinds[fold] == kind or self.kinds[fold] == MANY:
            return fold
        at = self.place(fold, kind)
        while True:
            found = self.table[at & self.table_mask]
            if not found:
                return self.enter(fold, kind)
            # A fold that repeats what is before is entered with its own number as a stand-in.
            if self.parents[found] == fold and self.kinds[found] == kind:
                return found if self.steps[found] else self.repeated(fold, kind)
            at += 1

    cdef inline uint64_t place(self, uint32_t fold, uint32_t kind) noexcept nogil:
        cdef uint64_t key = (<uint64_t>fold << 32 | kind) * <uint64_t>0x9E3779B97F4A7C15
        return key ^ (key >> 29)

    cdef uint32_t enter(self, uint32_t fold, uint32_t kind) noexcept nogil:
        """Returns a fold with one more step; an earlier fold if steps repeat, or by limits."""
        cdef uint32_t repeated = self.repeated(fold, kind)
        cdef uint32_t steps = self.steps[fold]
        if repeated == NONE and steps == MOST_STEPS:
            return self.after(fold, MANY) if kind != MANY else self.add(fold, kind, steps + 1)
        if repeated == NONE and self.count >= MOST_FOLDS:
            return fold
        if repeated == NONE:
            return self.add(fold, kind, steps + 1)
        if self.count < MOST_FOLDS:
            self.add(fold, kind, 0)
        return repeated

    cdef uint32_t repeated(self, uint32_t fold, uint32_t kind) noexcept nogil:
        """Returns a fold without its last steps if these, with ``kind``, repeat earlier ones."""
        cdef uint32_t last[2 * LONGEST_PERIOD]
        cdef uint32_t folds[2 * LONGEST_PERIOD]
        cdef int n = 1, period, at
        last[0], folds[0] = kind, NONE
        cdef uint32_t up = self.parents[fold]
        # The rest of a free block that was too small for a block of its own.
        if up and self.kinds[up] == kind and kind < SMALL_KINDS and self.kinds[fold] == kind + 2:
            return up
        while n < 2 * LONGEST_PERIOD and fold:
            last[n], folds[n] = self.kinds[fold], fold
            fold = self.parents[fold]
            n += 1
        for period in range(2, LONGEST_PERIOD + 1):
            if 2 * period > n:
                break
            for at in range(period):
                if last[at] != last[at + period]:
                    break
            else:
                return folds[period]
        return NONE

    cdef uint32_t add(self, uint32_t fold, uint32_t kind, uint32_t steps) noexcept nogil:
        """Stores a new fold. ``steps``: its length; 0 for a stand-in."""
        cdef uint64_t at
        cdef uint32_t number = <uint32_t>self.count
        if (self.count == self.room and not self.widen()) or self.is_out_of_memory:
            self.is_out_of_memory = True
            return 0
        self.parents[number], self.kinds[number], self.steps[number] = fold, kind, steps
        self.count += 1
        at = self.place(fold, kind)
        while self.table[at & self.table_mask]:
            at += 1
        self.table[at & self.table_mask] = number
        return number

    cdef bint widen(self) noexcept nogil:
        cdef Py_ssize_t room = 2 * self.room, number
        cdef uint64_t at, mask = 4 * room - 1
        if not (resize(&self.parents, room) and resize(&self.kinds, room)
                and resize(&self.steps, room) and resize(&self.table, mask + 1)):
            return False
        self.table_mask, self.room = mask, room
        memset(self.table, 0, (mask + 1) * 4)
        for number in range(1, self.count):
            at = self.place(self.parents[number], self.kinds[number])
            while self.table[at & mask]:
                at += 1
            self.table[at & mask] = <uint32_t>number
        return True


def count_on_way(
    const uint32_t[::1] parent,
    uint32_t top,
    const uint32_t[::1] folds,
    const uint32_t[::1] nodes,
    uint8_t[::1] seen,
    uint32_t[::1] counts,
):
    """Counts, by fold, nodes and those on the paths to them, once: then they are ``seen``."""
    cdef Py_ssize_t at
    cdef uint32_t node
    with nogil:
        for at in range(nodes.shape[0]):
            node = nodes[at]
            while node != top and not seen[node]:
                seen[node] = 1
                counts[folds[node]] += 1
                node = parent[node]
