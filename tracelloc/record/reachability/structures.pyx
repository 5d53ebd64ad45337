# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Lost structures: how blocks that nothing reachable points to are connected.

Cycles are strongly connected components (Tarjan, *Depth-first search and linear graph algorithms*,
1972). A component that no other points to begins a structure: the program lost the pointer to it,
and with it all that it leads to.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

cdef uint32_t NONE = 0xFFFFFFFF


def components(const uint32_t[::1] begins, const uint32_t[::1] targets, uint32_t[::1] component):
    """Fills in the number of each block's strongly connected component.

    The blocks that block n points to are ``targets[begins[n]:begins[n + 1]]``. Returns the
    number of components. Without recursion: a list may have millions of blocks.
    """
    cdef Py_ssize_t count = component.shape[0]
    cdef uint32_t root, node, other, number = 0, found = 0
    cdef Py_ssize_t path_top = 0, open_top = 0
    cdef uint32_t* order = <uint32_t*>calloc(count + 1, 4)  # when a block was first seen, from 1
    cdef uint32_t* low = <uint32_t*>calloc(count + 1, 4)
    cdef uint32_t* edge = <uint32_t*>calloc(count + 1, 4)  # the next pointer to follow
    cdef uint32_t* path = <uint32_t*>calloc(count + 1, 4)
    cdef uint32_t* waiting = <uint32_t*>calloc(count + 1, 4)  # seen, not in a component yet
    try:
        if not order or not low or not edge or not path or not waiting:
            raise MemoryError
        with nogil:
            for root in range(count):
                component[root] = NONE
            for root in range(count):
                if order[root]:
                    continue
                path[0], path_top = root, 1
                while path_top:
                    node = path[path_top - 1]
                    if not order[node]:
                        number += 1
                        order[node] = low[node] = number
                        edge[node] = begins[node]
                        waiting[open_top] = node
                        open_top += 1
                    elif edge[node] > begins[node]:
                        # Back from the block that the last pointer led to.
                        other = targets[edge[node] - 1]
                        if component[other] == NONE and low[other] < low[node]:
                            low[node] = low[other]
                    while edge[node] < begins[node + 1]:
                        other = targets[edge[node]]
                        edge[node] += 1
                        if not order[other]:
                            path[path_top] = other
                            path_top += 1
                            break
                        if component[other] == NONE and order[other] < low[node]:
                            low[node] = order[other]
                    else:
                        path_top -= 1
                        if low[node] == order[node]:
                            while True:
                                open_top -= 1
                                other = waiting[open_top]
                                component[other] = found
                                if other == node:
                                    break
                            found += 1
        return found
    finally:
        free(order)
        free(low)
        free(edge)
        free(path)
        free(waiting)


def led_to(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    const uint32_t[::1] component,
    uint8_t[::1] into,
):
    """Sets ``into`` to 1 for each component to which a block of another component points."""
    cdef Py_ssize_t node
    cdef uint32_t at, other
    with nogil:
        for node in range(component.shape[0]):
            for at in range(begins[node], begins[node + 1]):
                other = component[targets[at]]
                if other != component[node]:
                    into[other] = 1


def gather(
    const uint32_t[::1] begins,
    const uint32_t[::1] targets,
    const uint32_t[::1] firsts,
    const uint32_t[::1] kinds,
    uint32_t[::1] structure,
    uint32_t[:, ::1] about,
):
    """Gathers the blocks of each structure, in the order of ``firsts``: their first blocks.

    A block that several lead to belongs to the first of them. ``kinds``: equal for blocks of one
    size and class; blocks of the first one's kind are a structure's nodes. Fills in the number of
    each block's structure, and for each structure (blocks, nodes, pointers between nodes, most
    pointers from one node to others).
    """
    cdef Py_ssize_t number, at, top
    cdef uint32_t node, other, kind, between, most
    cdef uint32_t* waiting = <uint32_t*>calloc(structure.shape[0] + 1, 4)
    if not waiting:
        raise MemoryError
    with nogil:
        for at in range(structure.shape[0]):
            structure[at] = NONE
        for number in range(firsts.shape[0]):
            node = firsts[number]
            if structure[node] != NONE:
                continue
            kind, most = kinds[node], 0
            structure[node] = <uint32_t>number
            waiting[0], top = node, 1
            while top:
                top -= 1
                node = waiting[top]
                about[number, 0] += 1
                about[number, 1] += kinds[node] == kind
                between = 0
                for at in range(begins[node], begins[node + 1]):
                    other = targets[at]
                    if structure[other] == NONE:
                        structure[other] = <uint32_t>number
                        waiting[top] = other
                        top += 1
                    if structure[other] == number and kinds[node] == kind and kinds[other] == kind:
                        between += 1
                about[number, 2] += between
                most = max(most, between)
            about[number, 3] = most
    free(waiting)
