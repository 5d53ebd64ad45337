// Random heap operations from several threads, with the program's own books.
//
//   books THREADS OPERATIONS SEED SLOTS
//
// Every entry point of malloc(3) is used, blocks are freed and resized by other threads
// than those that made them, and calls are made to fail. The books are kept outside the
// heap: per allocating function, the number and the requested bytes of its blocks that
// are outstanding. Says "ready", then runs the operations once per line it hears, and
// answers each time with the books as one line of JSON.
#define _GNU_SOURCE
#include <malloc.h>

#include "command.h"

enum site {
    MALLOC, CALLOC, REALLOC, REALLOCARRAY, MEMALIGN, ALIGNED_ALLOC, POSIX_MEMALIGN,
    VALLOC, PVALLOC, STRDUP, STRNDUP, REALLOC_NULL, SITES,
};

static const char *const site_names[SITES] = {
    "by_malloc", "by_calloc", "by_realloc", "by_reallocarray", "by_memalign",
    "by_aligned_alloc", "by_posix_memalign", "by_valloc", "by_pvalloc", "by_strdup",
    "by_strndup", "by_realloc_null",
};

struct slot {
    void *block; // BUSY while a thread works on it
    size_t size;
    enum site site;
};

struct book {
    long count;
    long bytes;
};

#define BUSY ((void *)-1)

static struct slot *slots;
static struct book *books;
static long n_slots, operations;
static unsigned seed;

static void book(enum site site, size_t size, long sign)
{
    __atomic_add_fetch(&books[site].count, sign, __ATOMIC_RELAXED);
    __atomic_add_fetch(&books[site].bytes, sign * (long)size, __ATOMIC_RELAXED);
}

static char letters[512];

// Known only at run time, so that no compiler sees that these calls must fail.
// Eight times `eighth` is 2^64: a product that wraps to 0, as if nothing was asked for.
static volatile size_t half = SIZE_MAX / 2, eighth = (size_t)1 << 61;

NOINLINE static void *by_malloc(size_t size) { return malloc(size); }
NOINLINE static void *by_calloc(size_t size) { return calloc(size / 8 + 1, 8); }
NOINLINE static void *by_realloc(void *old, size_t size) { return realloc(old, size); }
NOINLINE static void *by_reallocarray(void *old, size_t n, size_t size)
{
    return reallocarray(old, n, size);
}
NOINLINE static void *by_memalign(size_t size) { return memalign(64, size); }
NOINLINE static void *by_aligned_alloc(size_t size) { return aligned_alloc(256, size); }
NOINLINE static void *by_posix_memalign(size_t size)
{
    void *block = NULL;

    return posix_memalign(&block, 4096, size) ? NULL : block;
}
NOINLINE static void *by_valloc(size_t size) { return valloc(size); }
#ifdef NO_PVALLOC
#define pvalloc valloc // not every allocator has it, and libc's must not be mixed with it
#endif
NOINLINE static void *by_pvalloc(size_t size) { return pvalloc(size); }
NOINLINE static void *by_strdup(size_t length) { return strdup(letters + 511 - length); }
NOINLINE static void *by_strndup(size_t length) { return strndup(letters, length); }
NOINLINE static void *by_realloc_null(size_t size) { return realloc(NULL, size); }

// Fills an empty slot.
static void *make(struct slot *slot, uint64_t dice)
{
    size_t size = dice >> 40 & 0x3ff;
    void *block;

    if ((dice >> 30 & 0x1ff) == 0)
        size = 200000 + (dice >> 40 & 0x3ffff); // beyond the threshold of mmap
    slot->site = (enum site)(dice >> 8 & 0xff) % SITES;
    switch (slot->site) {
    case MALLOC: block = by_malloc(size); break;
    case CALLOC: size = (size / 8 + 1) * 8; block = by_calloc(size - 8); break;
    case REALLOC: block = by_realloc(NULL, size); break;
    case REALLOCARRAY: block = by_reallocarray(NULL, size, 3); size *= 3; break;
    case MEMALIGN: block = by_memalign(size); break;
    case ALIGNED_ALLOC: block = by_aligned_alloc(size); break;
    case POSIX_MEMALIGN: block = by_posix_memalign(size); break;
    case VALLOC: block = by_valloc(size); break;
    case PVALLOC: block = by_pvalloc(size); break;
    case STRDUP: size &= 0x1ff; if (size > 510) size = 510; block = by_strdup(size); size++; break;
    case STRNDUP: size &= 0xff; block = by_strndup(size); size++; break;
    default: block = by_realloc_null(size); break;
    }
    if (!block)
        _exit(4);
    slot->size = size;
    book(slot->site, size, 1);
    return block;
}

// Calls that fail and leave everything as it was.
static void fail(uint64_t dice)
{
    void *nothing = &nothing;

    switch (dice >> 8 & 7) {
    case 0: if (malloc(half - 1000)) _exit(5); break;
    case 1: if (calloc(eighth, 8)) _exit(5); break;
    case 2: if (posix_memalign(&nothing, 3, 100) == 0) _exit(5); break;
    case 3: if (memalign(64, half)) _exit(5); break;
    case 4: if (reallocarray(NULL, eighth, 8)) _exit(5); break;
    case 5: if (calloc(1, half)) _exit(5); break;
    default: free(NULL); break;
    }
}

// The slot has a block of another size and site.
static void *resized(struct slot *slot, void *block, enum site site, size_t size)
{
    book(slot->site, slot->size, -1);
    slot->site = site;
    slot->size = size;
    if (block)
        book(site, size, 1);
    return block;
}

// Does something to a filled slot's block. Returns what is in the slot afterwards.
static void *change(struct slot *slot, void *block, uint64_t dice)
{
    size_t size = dice >> 40 & 0x7ff, many = size / 4 + 1;

    switch (dice >> 8 & 15) {
    case 0: // resizes that fail
        if (by_realloc(block, half))
            _exit(6);
        return block;
    case 1:
        if (by_reallocarray(block, eighth, 8))
            _exit(6);
        return block;
    case 2: // a resize to nothing: glibc frees, others keep an empty block
        return resized(slot, by_realloc(block, 0), REALLOC, 0);
    case 3:
    case 4:
    case 5:
        return resized(slot, by_realloc(block, size + 1), REALLOC, size + 1);
    case 6:
        return resized(slot, by_reallocarray(block, many, 5), REALLOCARRAY, many * 5);
    default:
        free(block);
        book(slot->site, slot->size, -1);
        return NULL;
    }
}

static void work(long number)
{
    static __thread uint64_t state;

    if (!state)
        state = seed * 0x9e3779b97f4a7c15u + (uint64_t)number * 0xd1342543de82ef95u + 1;
    for (long n = 0; n < operations; n++) {
        uint64_t dice = next_random(&state);
        struct slot *slot = &slots[dice % (uint64_t)n_slots];
        void *block = __atomic_exchange_n(&slot->block, BUSY, __ATOMIC_ACQUIRE);

        if (block == BUSY)
            continue;
        dice = next_random(&state);
        if ((dice & 0x1f) == 0)
            fail(dice);
        block = block ? change(slot, block, dice) : make(slot, dice);
        __atomic_store_n(&slot->block, block, __ATOMIC_RELEASE);
    }
}

static void say_books(void)
{
    for (int site = 0; site < SITES; site++)
        tell("%s\"%s\":[%ld,%ld]", site ? "," : "{", site_names[site], books[site].count,
             books[site].bytes);
    say("}\n");
}

int main(int argc, char **argv)
{
    (void)argc;
    operations = atol(argv[2]);
    seed = (unsigned)atol(argv[3]);
    n_slots = atol(argv[4]);
    memset(letters, 'x', sizeof(letters) - 1);
    slots = outside_the_heap((size_t)n_slots * sizeof(*slots));
    books = outside_the_heap(SITES * sizeof(*books));
    begin_gang(atol(argv[1]), work);
    say("ready\n");
    for (;;) {
        wait_for_line();
        take_turn();
        say_books();
    }
}
