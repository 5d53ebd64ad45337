// A pool with books of its own: slices of memory that never came from malloc, a pool whose
// chunks do, nodes of one size, and malloc beside them.
//
// Says "ready", then works once per line it hears and answers with its books: blocks and
// bytes by where they come from.
#include "command.h"

struct pool {
    char *next;
    char *end;
};

static char memory[1 << 22];
static struct pool fixed;
static void *slots[3000];
static size_t sizes[3000];
static long books[4][2];

// pool_take(pool, flags, size): the size is the third argument.
NOINLINE void *pool_take(struct pool *pool, int flags, size_t size)
{
    char *block = pool->next;
    size_t whole = (size + 15) & ~(size_t)15;

    if (flags < 0 || (size_t)(pool->end - block) < whole + 16)
        return NULL;
    pool->next = block + whole + 16;
    return block;
}

NOINLINE void pool_give(struct pool *pool, void *block)
{
    if (block == pool->next)
        pool->next = block;
    __asm__ volatile("" ::: "memory");
}

// Each block is a chunk of malloc's: it counts once, as the pool's.
NOINLINE void *chunk_take(size_t n, size_t size)
{
    char *chunk = malloc(n * size + 32);

    __asm__ volatile("" : "+r"(chunk));
    return chunk ? chunk + 32 : NULL;
}

NOINLINE void chunk_give(void *block)
{
    if (block)
        free((char *)block - 32);
    __asm__ volatile("" ::: "memory");
}

// All blocks are of one size, which no argument says.
NOINLINE void *node_take(struct pool *pool)
{
    char *node = pool->next;

    pool->next = node + 112;
    __asm__ volatile("" ::: "memory");
    return node;
}

static void take_nodes(int count)
{
    for (int n = 0; n < count; n++)
        node_take(&fixed);
    books[3][0] += count;
    books[3][1] += 112L * count;
}

static void work(void)
{
    unsigned dice = 12345;

    for (int n = 0; n < 60000; n++) {
        int slot, kind;

        dice = dice * 1664525 + 1013904223;
        slot = (dice >> 8) % 3000;
        kind = slot % 3;
        if (slots[slot]) {
            if (kind == 0)
                pool_give(&fixed, slots[slot]);
            else if (kind == 1)
                chunk_give(slots[slot]);
            else
                free(slots[slot]);
            books[kind][0]--;
            books[kind][1] -= (long)sizes[slot];
            slots[slot] = NULL;
            continue;
        }
        sizes[slot] = (dice >> 20) % 60 + 1;
        if (kind == 0)
            slots[slot] = pool_take(&fixed, 0, sizes[slot]);
        else if (kind == 1)
            slots[slot] = chunk_take(1, sizes[slot]);
        else
            slots[slot] = malloc(sizes[slot]);
        if (!slots[slot])
            continue;
        books[kind][0]++;
        books[kind][1] += (long)sizes[slot];
    }
    if (pool_take(&fixed, -1, 100)) // fails, and counts for nothing
        _exit(5);
}

int main(void)
{
    fixed.next = memory;
    fixed.end = memory + sizeof(memory);
    say("ready\n");
    for (;;) {
        wait_for_line();
        work();
        take_nodes(41);
        tell("{\"pool_take\":[%ld,%ld],\"chunk_take\":[%ld,%ld],\"work\":[%ld,%ld],"
             "\"node_take\":[%ld,%ld]}\n",
             books[0][0], books[0][1], books[1][0], books[1][1], books[2][0], books[2][1],
             books[3][0], books[3][1]);
    }
}
