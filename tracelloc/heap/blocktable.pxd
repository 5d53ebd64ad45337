# cython: language_level=3, cdivision=True
"""Outstanding blocks: a hash table by address, 32 bytes a slot, at most four in five in use.

Forks share a table until one of them writes to it.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from tracelloc.heap.hashing cimport home_of, prefetch

cdef enum:
    LARGE = 1 << 20  # slots

cdef struct Block:
    uint64_t size
    uint64_t birth_ns
    uint32_t stack
    uint32_t tid

cdef struct Blocks:
    int64_t owners
    uint64_t count
    uint64_t room
    uint64_t* addresses  # 0: an empty slot
    Block* slots

cdef struct Moved:
    uint64_t address
    Block block


cdef inline Blocks* new_blocks(uint64_t room) noexcept nogil:
    """Returns an empty table with ``room`` slots; NULL if out of memory."""
    cdef Blocks* blocks = <Blocks*>calloc(1, sizeof(Blocks))
    if not blocks:
        return NULL
    blocks.owners, blocks.room = 1, room
    blocks.addresses = <uint64_t*>calloc(room, sizeof(uint64_t))
    blocks.slots = <Block*>malloc(room * sizeof(Block))
    if not blocks.addresses or not blocks.slots:
        drop_blocks(blocks)
        return NULL
    return blocks


cdef inline void drop_blocks(Blocks* blocks) noexcept nogil:
    """Drops one owner of a table; the last owner frees it."""
    if not blocks:
        return
    blocks.owners -= 1
    if blocks.owners == 0:
        free(blocks.addresses)
        free(blocks.slots)
        free(blocks)


cdef inline Blocks* own_blocks(Blocks* blocks) noexcept nogil:
    """Returns the table to write to: a copy if it has other owners. NULL if out of memory."""
    cdef Blocks* copy
    if blocks.owners == 1:
        return blocks
    copy = new_blocks(blocks.room)
    if copy:
        memcpy(copy.addresses, blocks.addresses, blocks.room * sizeof(uint64_t))
        memcpy(copy.slots, blocks.slots, blocks.room * sizeof(Block))
        copy.count = blocks.count
        blocks.owners -= 1
    return copy


cdef inline void fetch_block(Blocks* blocks, uint64_t address) noexcept nogil:
    cdef uint64_t slot = home_of(address, blocks.room)
    prefetch(&blocks.addresses[slot])
    prefetch(&blocks.slots[slot])


cdef inline uint64_t find_block(Blocks* blocks, uint64_t address) noexcept nogil:
    """Returns the slot of the block at an address, or the empty slot for it."""
    cdef uint64_t at = home_of(address, blocks.room)
    while blocks.addresses[at] != address and blocks.addresses[at] != 0:
        at += 1
        if at == blocks.room:
            at = 0
    return at


cdef inline void remove_block(Blocks* blocks, uint64_t at) noexcept nogil:
    """Empties a slot, and moves displaced blocks towards their home slots."""
    cdef uint64_t later = at, home
    while True:
        later += 1
        if later == blocks.room:
            later = 0
        if blocks.addresses[later] == 0:
            break
        home = home_of(blocks.addresses[later], blocks.room)
        # A block fills the hole unless its home lies between the hole and itself.
        if (home <= at or home > later) if at <= later else (home <= at and home > later):
            blocks.addresses[at], blocks.slots[at] = blocks.addresses[later], blocks.slots[later]
            at = later
    blocks.addresses[at] = 0
    blocks.count -= 1


cdef inline bint has_room(Blocks* blocks) noexcept nogil:
    """Whether there is room for one more block, growing if needed. False if out of memory."""
    cdef uint64_t room = blocks.room, used = blocks.count + 1
    # Small tables are fast, large ones waste less.
    if room < LARGE:
        return 8 * used <= 5 * room or grow_blocks(blocks, 2 * room)
    return 5 * used <= 4 * room or grow_blocks(blocks, room + (room >> 2))


cdef inline bint put_moved(
    Blocks* blocks, uint64_t at, uint64_t address, Block* block
) noexcept nogil:
    """Puts a block into the first empty slot from its home on. False if there is none."""
    while at < blocks.room and blocks.addresses[at]:
        at += 1
    if at == blocks.room:
        return False
    blocks.addresses[at], blocks.slots[at] = address, block[0]
    return True


cdef inline bint grow_blocks(Blocks* blocks, uint64_t room) noexcept nogil:
    """Grows in place, so that memory is never needed twice. False if out of memory."""
    cdef uint64_t at = blocks.room, to, address, aside = 0
    cdef uint64_t* addresses = <uint64_t*>realloc(blocks.addresses, room * sizeof(uint64_t))
    cdef Block* slots = <Block*>realloc(blocks.slots, room * sizeof(Block))
    cdef Block block
    cdef Moved* moved = NULL
    blocks.addresses = addresses if addresses else blocks.addresses
    blocks.slots = slots if slots else blocks.slots
    if not addresses or not slots:
        return False
    memset(&addresses[at], 0, (room - at) * sizeof(uint64_t))
    blocks.room = room
    # From the end backwards: blocks move up, into space free of the old order. The few that
    # would find no room there are set aside until all others have moved.
    while at > 0:
        at -= 1
        address = addresses[at]
        if address == 0:
            continue
        addresses[at] = 0
        block = slots[at]
        to = home_of(address, room)
        if to < at or not put_moved(blocks, to, address, &block):
            if aside % 1024 == 0:
                moved = <Moved*>realloc(moved, (aside + 1024) * sizeof(Moved))
                if not moved:
                    return False
            moved[aside].address, moved[aside].block = address, block
            aside += 1
    for at in range(aside):
        address = moved[at].address
        if not put_moved(blocks, home_of(address, room), address, &moved[at].block):
            put_moved(blocks, 0, address, &moved[at].block)
    free(moved)
    return True
