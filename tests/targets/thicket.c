// Many call stacks: a binary tree of calls, one stack per leaf, some blocks alive on each.
//
//   thicket DEPTH BLOCKS    2^DEPTH stacks, BLOCKS blocks on each
//
// Hears a number of milliseconds, replaces blocks for that long, leaf after leaf, and
// answers with the number of pairs of free and malloc.
//
//   thicket                 allocates and frees on ever other ones of 2^40 stacks, without end
#include "command.h"

static long depth, blocks;
static void **alive;

NOINLINE static void leaf(long number)
{
    void **own = alive + number * blocks;

    if (!blocks)
        free(malloc(16));
    for (long n = 0; n < blocks; n++) {
        free(own[n]);
        own[n] = malloc(32 + (size_t)(number * 7 + n) % 300);
    }
}

#define SIDE(name) \
    NOINLINE static void name(long level, unsigned long number) \
    { \
        if (level == depth) \
            leaf((long)number); \
        else if (number >> level & 1) \
            right(level + 1, number); \
        else \
            left(level + 1, number); \
        __asm__ volatile("" ::: "memory"); \
    }
static void right(long level, unsigned long number);
SIDE(left)
SIDE(right)

int main(int argc, char **argv)
{
    char line[128];
    long at = 0;

    depth = argc > 1 ? atol(argv[1]) : 40;
    blocks = argc > 2 ? atol(argv[2]) : 0;
    alive = calloc((size_t)blocks << depth, sizeof(*alive));
    say("ready\n");
    for (uint64_t dice = 1; !blocks;)
        left(0, next_random(&dice));
    for (;;) {
        long long end_ns;
        long pairs = 0;

        hear(line, sizeof(line));
        end_ns = now_ns() + atoll(line) * 1000000;
        do {
            left(0, at);
            at = (at + 1) & ((1L << depth) - 1);
            pairs += blocks;
        } while (now_ns() < end_ns);
        tell("%ld\n", pairs);
    }
}
