// What an allocator gives for what is asked of it, by its own malloc_usable_size.
//
//   usable
//
// Says "ready". "table FILE" writes what malloc gives for each size (see sizes() in
// tests/unit/heap/test_usable.py) into a file, as 8-byte numbers. "fill SEED MOST ALIGNED" makes
// and frees blocks at random, of up to MOST bytes, some of them aligned if ALIGNED is not 0,
// and answers with those that are outstanding: number, bytes asked for, bytes usable.
#include <malloc.h>

#include "command.h"

#define SLOTS 3000
#define ROUNDS 40000

static struct {
    void *block;
    size_t size;
} slots[SLOTS]; // outside the heap

static uint64_t state;

static void note(FILE *file, size_t size)
{
    void *block = malloc(size);
    uint64_t usable = malloc_usable_size(block);

    free(block);
    if (!block || fwrite(&usable, sizeof(usable), 1, file) != 1)
        _exit(3);
}

static void table(const char *path)
{
    FILE *file = fopen(path, "wb");

    if (!file)
        _exit(3);
    for (size_t size = 1; size <= 70000; size++)
        note(file, size);
    for (size_t size = 70001; size <= (size_t)80 << 20; size += size / 97)
        note(file, size);
    if (fclose(file))
        _exit(3);
    say("done\n");
}

// Most blocks are small, as in most programs.
static size_t draw(size_t most)
{
    uint64_t dice = next_random(&state);

    return dice >> 16 & 7 ? (dice >> 20) % (most < 1000 ? most : 1000) : (dice >> 20) % (most + 1);
}

static void change(size_t most, int aligned)
{
    uint64_t at = next_random(&state) % SLOTS, kind = next_random(&state) >> 20 & 15;
    void *old = slots[at].block;
    size_t size = draw(most);

    if (old && kind < 9) {
        free(old);
        slots[at].block = NULL;
        return;
    }
    if (old && size < slots[at].size)
        return; // a smaller one might keep its place
    slots[at].size = size;
    if (old)
        slots[at].block = realloc(old, size);
    else if (aligned && kind < 3)
        slots[at].block = memalign((size_t)16 << (next_random(&state) >> 30 & 7), size);
    else if (kind < 8)
        slots[at].block = calloc(1, size);
    else
        slots[at].block = malloc(size);
    if (!slots[at].block)
        _exit(4);
}

static void fill(const char *words)
{
    unsigned long seed, most, blocks = 0, bytes = 0, usable = 0;
    int aligned;

    if (sscanf(words, "%lu %lu %d", &seed, &most, &aligned) != 3)
        _exit(5);
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int n = 0; n < ROUNDS; n++)
        change(most, aligned);
    for (int n = 0; n < SLOTS; n++) {
        if (!slots[n].block)
            continue;
        blocks++;
        bytes += slots[n].size;
        usable += malloc_usable_size(slots[n].block);
    }
    tell("{\"blocks\":%lu,\"bytes\":%lu,\"usable\":%lu}\n", blocks, bytes, usable);
}

int main(void)
{
    char line[4096];

    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "table ", 6) == 0)
            table(line + 6);
        else if (strncmp(line, "fill ", 5) == 0)
            fill(line + 5);
        else
            return 2;
    }
}
