// A small allocator with jemalloc's interface under a prefix, as Rust links it in, and a
// program that uses all of it and keeps books. Its memory does not come from malloc.
//
//   -DLINKED    uses jemalloc itself, which is to be linked
#include "command.h"

#undef NOINLINE
#define NOINLINE __attribute__((noinline, noclone))
#define SLOTS 400
#define ROOM 4096 // each slot of the arena

#ifdef LINKED
#define _rjem_malloc malloc
#define _rjem_calloc calloc
#define _rjem_mallocx mallocx
#define _rjem_aligned_alloc aligned_alloc
#define _rjem_posix_memalign posix_memalign
#define _rjem_realloc realloc
#define _rjem_rallocx rallocx
#define _rjem_xallocx xallocx
#define _rjem_nallocx nallocx
#define _rjem_free free
#define _rjem_dallocx dallocx
#define _rjem_sdallocx sdallocx
void *mallocx(size_t size, int flags), *rallocx(void *old, size_t size, int flags);
size_t xallocx(void *block, size_t size, size_t extra, int flags);
size_t nallocx(size_t size, int flags), sallocx(void *block, int flags);
void dallocx(void *block, int flags), sdallocx(void *block, size_t size, int flags);

static volatile size_t too_much = SIZE_MAX / 2;
#define FAILED_RESIZE(block) (rallocx(block, too_much, 0) || realloc(block, too_much))
// What xallocx could not make smaller is as large as it was.
#define SIZE_OF(slot) sallocx(slots[slot].block, 0)
#else
#define FAILED_RESIZE(block) (_rjem_rallocx(block, 1, 1) || _rjem_realloc(block, ROOM + 1))
#define SIZE_OF(slot) slots[slot].size

static char arena[SLOTS * 2][ROOM] __attribute__((aligned(4096)));
static unsigned char used[SLOTS * 2];
static size_t room_of[SLOTS * 2];

NOINLINE static void *take(size_t size)
{
    if (size > ROOM)
        return NULL;
    for (int n = 0; n < SLOTS * 2; n++) {
        if (!used[n]) {
            used[n] = 1;
            room_of[n] = size;
            return arena[n];
        }
    }
    return NULL;
}

NOINLINE static void give(void *block)
{
    if (block)
        used[((char *)block - arena[0]) / ROOM] = 0;
}

NOINLINE void *_rjem_malloc(size_t size) { return take(size); }
NOINLINE void *_rjem_calloc(size_t n, size_t size) { return take(n * size); }
NOINLINE void *_rjem_mallocx(size_t size, int flags) { return take(size + (size_t)flags * 0); }
NOINLINE void *_rjem_aligned_alloc(size_t align, size_t size) { return align ? take(size) : NULL; }
NOINLINE int _rjem_posix_memalign(void **out, size_t align, size_t size)
{
    *out = take(size);
    return *out ? 0 : (int)(12 + align * 0);
}
NOINLINE void *_rjem_realloc(void *old, size_t size)
{
    void *moved = take(size);

    if (moved)
        give(old);
    return moved;
}
NOINLINE void *_rjem_rallocx(void *old, size_t size, int flags)
{
    return flags ? NULL : _rjem_realloc(old, size);
}
// In place or not at all; the result is what the block has now.
NOINLINE size_t _rjem_xallocx(void *block, size_t size, size_t extra, int flags)
{
    size_t *room = &room_of[((char *)block - arena[0]) / ROOM];

    if (size + extra <= ROOM - 1000 && !flags)
        *room = size;
    return *room;
}
NOINLINE size_t _rjem_nallocx(size_t size, int flags) { return size + (size_t)flags * 0; }
NOINLINE void _rjem_free(void *block) { give(block); }
NOINLINE void _rjem_dallocx(void *block, int flags) { give(flags ? NULL : block); }
NOINLINE void _rjem_sdallocx(void *block, size_t size, int flags)
{
    give(size || !flags ? block : NULL);
}
#endif

static struct {
    char *block;
    size_t size;
} slots[SLOTS];
static long blocks, bytes;

static void set(int slot, void *block, size_t size)
{
    blocks += (block != NULL) - (slots[slot].block != NULL);
    bytes += (long)(block ? size : 0) - (long)(slots[slot].block ? slots[slot].size : 0);
    slots[slot].block = block;
    slots[slot].size = size;
}

static void make(int slot, unsigned dice, size_t size)
{
    void *block = NULL;

    switch (dice % 5) {
    case 0: block = _rjem_malloc(size); break;
    case 1: size = size / 8 * 8; block = _rjem_calloc(size / 8, 8); break;
    case 2: block = _rjem_mallocx(size, 0); break;
    case 3: block = _rjem_aligned_alloc(64, size); break;
    default: if (_rjem_posix_memalign(&block, 64, size)) block = NULL; break;
    }
    set(slot, block, size);
}

static void change(int slot, unsigned dice, size_t size)
{
    void *moved;

    switch (dice % 7) {
    case 0:
    case 1:
        moved = dice % 7 ? _rjem_realloc(slots[slot].block, size)
                         : _rjem_rallocx(slots[slot].block, size, 0);
        if (moved)
            set(slot, moved, size);
        return;
    case 2:
        if (FAILED_RESIZE(slots[slot].block))
            _exit(5);
        return;
    case 3:
        if (_rjem_xallocx(slots[slot].block, size, 0, 0) >= size)
            set(slot, slots[slot].block, size);
        return;
    case 4: _rjem_free(slots[slot].block); break;
    case 5: _rjem_dallocx(slots[slot].block, 0); break;
    default: _rjem_sdallocx(slots[slot].block, SIZE_OF(slot), 0); break;
    }
    set(slot, NULL, 0);
}

int main(void)
{
    unsigned dice = 1;

    say("ready\n");
    for (;;) {
        wait_for_line();
        for (int n = 0; n < 20000; n++) {
            int slot;

            dice = dice * 1664525 + 1013904223;
            slot = (int)((dice >> 8) % SLOTS);
            if (slots[slot].block)
                change(slot, dice >> 12, (dice >> 18) % 4000 + 1);
            else
                make(slot, dice >> 12, (dice >> 18) % 4000 + 1);
            _rjem_nallocx(dice % 1000 + 1, 0);
        }
        tell("{\"blocks\":%ld,\"bytes\":%ld}\n", blocks, bytes);
    }
}
