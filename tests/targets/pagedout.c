// Pages out the memory that has its pointers, or the memory that it has lost.
//
// On "allocate", it allocates COUNT blocks to which only a mapping points, and COUNT to which
// nothing does. On "pointers" and "lost", it has the kernel page out the mapping, and the whole
// pages of the lost blocks; on "touch", it reads the mapping. It answers each with a line.
#include "command.h"

#define COUNT 64
#define ROOM (64 * 1024)
#define PAGE 4096ul
#define HIDDEN 0x5a5a5a5a5a5a5a5aul

static void **table;
static uintptr_t lost[COUNT];

__attribute__((noinline)) static void allocate(void)
{
    for (int n = 0; n < COUNT; n++) {
        table[n * 8] = malloc(ROOM);
        memset(table[n * 8], 1, ROOM);
        lost[n] = (uintptr_t)malloc(ROOM) ^ HIDDEN;
        memset((void *)(lost[n] ^ HIDDEN), 1, ROOM);
    }
}

__attribute__((noinline)) static void page_out_lost(void)
{
    for (int n = 0; n < COUNT; n++) {
        uintptr_t start = ((lost[n] ^ HIDDEN) + PAGE - 1) & ~(PAGE - 1);

        madvise((void *)start, ROOM - PAGE, MADV_PAGEOUT);
    }
}

int main(void)
{
    table = outside_the_heap(PAGE);
    say("ready\n");
    for (;;) {
        char line[64];

        hear(line, sizeof(line));
        if (!strcmp(line, "allocate"))
            allocate();
        else if (!strcmp(line, "pointers"))
            madvise(table, PAGE, MADV_PAGEOUT);
        else if (!strcmp(line, "lost"))
            page_out_lost();
        else
            *(void *volatile *)table;
        scrub();
        say("done\n");
    }
}
