// A process whose memory is hard to search: sprawl KIND
//
//   mappings  8,000 mappings beside each other, each with one page in memory and a hole
//   reserved  32 TiB that may not be accessed, and 32 TiB of which few pages are in memory
//   restless  two threads that map and unmap, and make and free large blocks, all the time
//   copies    64 MiB in which every 16th page begins as a mapped block of glibc does, and three such
//             blocks, which are lost
//   tangle    100,000 blocks, each with seven pointers to any others; all are lost
//
// Loses 100 blocks of 1,000 bytes, says "ready", and ends with its input.
#include "command.h"

enum { MAPPINGS = 8000, PAGE = 4096, TANGLED = 100000, POINTERS = 7, COPIED = 64 << 20 };

static const size_t RESERVED = (size_t)2 << 40;

static uint64_t state = 88172645463325252;

static char *map(size_t size, int rights)
{
    return map_memory(NULL, size, rights, MAP_NORESERVE, -1);
}

static void *be_restless(void *unused)
{
    for (;;) {
        char *memory[64], *block = malloc(3 << 20);

        block[0] = 1;
        for (int n = 0; n < 64; n++) {
            memory[n] = map(16 * PAGE, PROT_READ | PROT_WRITE);
            memory[n][0] = 1;
        }
        free(block);
        for (int n = 0; n < 64; n++)
            munmap(memory[n], 16 * PAGE);
    }
    return unused;
}

__attribute__((noinline)) static void copy_headers(void)
{
    size_t *memory = (size_t *)map(COPIED, PROT_READ | PROT_WRITE);

    for (size_t at = PAGE; at + 8 * PAGE < COPIED; at += 16 * PAGE)
        memory[at / sizeof(size_t) + 1] = 5 * PAGE | 2;
    for (int n = 0; n < 3; n++)
        *(char *volatile)malloc(300000) = 1;
}

__attribute__((noinline)) static void tangle(void)
{
    void ***blocks = (void ***)map(TANGLED * sizeof(*blocks), PROT_READ | PROT_WRITE);

    for (int n = 0; n < TANGLED; n++)
        blocks[n] = malloc(POINTERS * sizeof(void *));
    for (int n = 0; n < TANGLED; n++)
        for (int pointer = 0; pointer < POINTERS; pointer++)
            blocks[n][pointer] = blocks[next_random(&state) % TANGLED];
    munmap(blocks, TANGLED * sizeof(*blocks));
}

int main(int count, char **words)
{
    const char *kind = count > 1 ? words[1] : "";

    lose_blocks(100, 1000);
    if (!strcmp(kind, "mappings")) {
        for (int n = 0; n < MAPPINGS; n++) {
            char *memory = map(2 * PAGE, PROT_READ | PROT_WRITE);

            memory[0] = 1;
            mprotect(memory + PAGE, PAGE, PROT_NONE);
        }
    } else if (!strcmp(kind, "reserved")) {
        for (int n = 0; n < 16; n++) {
            char *memory = map(RESERVED, PROT_READ | PROT_WRITE);

            map(RESERVED, PROT_NONE);
            for (int page = 0; page < 100; page++)
                memory[next_random(&state) % RESERVED] = 1;
        }
    } else if (!strcmp(kind, "restless")) {
        begin_thread(be_restless, NULL);
        begin_thread(be_restless, NULL);
    } else if (!strcmp(kind, "copies")) {
        copy_headers();
    } else if (!strcmp(kind, "tangle")) {
        tangle();
    }
    scrub();
    say("ready\n");
    wait_for_line();
    return 0;
}
