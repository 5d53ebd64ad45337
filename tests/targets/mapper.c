// Maps and unmaps memory in every way there is, with books page by page.
//
// Parts of mappings are unmapped, mappings are put over others, moved, grown, shrunk, and
// calls are made to fail; between them malloc makes blocks so large that it maps them.
// Says "ready", then works once per line it hears and answers with its number and the bytes
// mapped by each function, as one line of JSON. "fork N" first makes N descendants, each the
// child of the one before, that begin with what their parent has, work, answer in the same
// way, the last one first, and end; before each fork something is mapped that was not seen
// before. "exec" begins the program again.
#define _GNU_SOURCE
#include <malloc.h>

#include "command.h"

#define PAGE ((unsigned long)sysconf(_SC_PAGESIZE))
#define ROOM (1ul << 16)
#define SLOTS 64

enum site { BY_MMAP, BY_FIXED, BY_REMAP, BY_SBRK, SITES };

// Who has mapped each page: a hash table by page number; a freed entry stays as a tombstone.
static struct {
    uintptr_t page;
    int site; // -1: nobody
} owners[ROOM];
static long books[SITES];
static struct {
    char *start;
    size_t pages;
} slots[SLOTS];
static char *bottom;
static long sbrk_pages;

static void own(char *start, size_t pages, int site)
{
    for (size_t n = 0; n < pages; n++) {
        uintptr_t page = (uintptr_t)start / PAGE + n;
        size_t at = page * 0x9e3779b97f4a7c15u >> 48;

        while (owners[at].page && owners[at].page != page)
            at = (at + 1) % ROOM;
        if (owners[at].page && owners[at].site >= 0)
            books[owners[at].site] -= (long)PAGE;
        owners[at].page = page;
        owners[at].site = site;
        if (site >= 0)
            books[site] += (long)PAGE;
    }
}

NOINLINE static char *by_mmap(size_t pages)
{
    // Less than whole pages are asked for: whole pages are mapped.
    return mmap(NULL, pages * PAGE - 100, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                0);
}

NOINLINE static char *by_fixed(char *start, size_t pages)
{
    return mmap(start, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

NOINLINE static char *by_remap(char *start, size_t pages, size_t now)
{
    return mremap(start, pages * PAGE, now * PAGE, MREMAP_MAYMOVE);
}

NOINLINE static char *by_sbrk(long bytes) { return sbrk(bytes); }

static void check(int right)
{
    if (!right)
        _exit(5);
}

static void fail(void)
{
    check(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    for (int n = 0; n < SLOTS; n++) {
        if (!slots[n].start)
            continue;
        // The second address is no page's: what looks like an unmapping does nothing.
        check(munmap(slots[n].start + 1, slots[n].pages * PAGE) != 0);
        check(mremap(slots[n].start, slots[n].pages * PAGE, 1ul << 50, 0) == MAP_FAILED);
        return;
    }
}

static void step(unsigned dice)
{
    int n = (int)(dice % SLOTS);
    size_t pages = slots[n].pages, some = (dice >> 8) % 12 + 1;
    char *start = slots[n].start;

    if (!start) {
        slots[n].start = by_mmap(some);
        check(slots[n].start != MAP_FAILED);
        slots[n].pages = some;
        own(slots[n].start, some, BY_MMAP);
        return;
    }
    switch (dice >> 16 & 7) {
    case 0: // all of it
        check(!munmap(start, pages * PAGE));
        own(start, pages, -1);
        slots[n].start = NULL;
        return;
    case 1: // its end
        if (pages > 1) {
            check(!munmap(start + (pages - 1) * PAGE, 1));
            own(start + (pages - 1) * PAGE, 1, -1);
            slots[n].pages--;
        }
        return;
    case 2: // its beginning
        if (pages > 1) {
            check(!munmap(start, PAGE));
            own(start, 1, -1);
            slots[n].start += PAGE;
            slots[n].pages--;
        }
        return;
    case 3: // its middle comes from somewhere else
        if (pages > 2) {
            check(by_fixed(start + PAGE, pages - 2) == start + PAGE);
            own(start + PAGE, pages - 2, BY_FIXED);
        }
        return;
    case 4: // it is made anew, so that it is one mapping, and then grows or shrinks
        check(by_fixed(start, pages) == start);
        own(start, pages, BY_FIXED);
        slots[n].start = by_remap(start, pages, some);
        check(slots[n].start != MAP_FAILED);
        own(start, pages, -1);
        own(slots[n].start, some, BY_REMAP);
        slots[n].pages = some;
        return;
    default:
        fail();
        return;
    }
}

static void move_break(unsigned dice)
{
    long pages = (long)(dice % 9) - 4;

    if (!bottom)
        by_sbrk((long)(-(uintptr_t)sbrk(0) % PAGE));
    bottom = sbrk(0);
    if (sbrk_pages + pages < 0)
        pages = -sbrk_pages;
    check(by_sbrk(pages * (long)PAGE) == bottom);
    if (pages > 0)
        own(bottom, (size_t)pages, BY_SBRK);
    else if (pages < 0)
        own(bottom + pages * (long)PAGE, (size_t)-pages, -1);
    sbrk_pages += pages;
}

static void work(unsigned *dice)
{
    for (int n = 0; n < 3000; n++) {
        *dice = *dice * 1664525 + 1013904223;
        step(*dice >> 4);
        if (n % 10 == 0)
            move_break(*dice >> 12);
        if (n % 7 == 0)
            free(malloc(1 << 20));
    }
}

static void say_books(void)
{
    tell("{\"pid\":%d,\"by_mmap\":%ld,\"by_fixed\":%ld,\"by_remap\":%ld,\"by_sbrk\":%ld}\n",
         getpid(), books[BY_MMAP], books[BY_FIXED], books[BY_REMAP], books[BY_SBRK]);
}

NOINLINE static void grow(long left, unsigned *dice)
{
    pid_t child;

    own(by_mmap(3), 3, BY_MMAP);
    child = fork();
    if (!child) {
        if (left > 1)
            grow(left - 1, dice);
        work(dice);
        say_books();
        _exit(0);
    }
    wait_for(child);
}

int main(void)
{
    char line[256];
    unsigned dice = 99;
    long descendants;

    // From here on malloc leaves the break alone: large blocks are always mapped.
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    free(malloc(100));
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        if (!strcmp(line, "exec"))
            execl("/proc/self/exe", "mapper", (char *)NULL);
        if (sscanf(line, "fork %ld", &descendants) == 1)
            grow(descendants, &dice);
        work(&dice);
        say_books();
    }
}
