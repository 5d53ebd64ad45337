// Holds blocks of random sizes, and says how many bytes and blocks these are.
//
//   hoard THREADS
//
// Says "ready", then hears lines, does what each says in all threads, and answers with the bytes
// and blocks outstanding: "grow" allocates 64 MiB per thread, "shrink" frees every second block,
// "resize" makes every block half as large again, "clear" frees all. "fork" has a child do all of
// that, and answers with its exit status instead; "pairs" allocates and frees in one thread,
// and answers with the nanoseconds of processor time for each such pair.
#include "command.h"

enum { SLOTS = 1 << 15, GROWTH = 64 << 20, PAIRS = 2000000 };

struct slot {
    void *block;
    size_t size;
};

static struct slot *slots;
static int threads;
static char order[64];

__attribute__((noinline)) static void *take(size_t size) { return malloc(size); }

__attribute__((noinline)) static void *enlarge(void *block, size_t size)
{
    return realloc(block, size);
}

static void obey(struct slot *own, uint64_t *state)
{
    size_t grown = 0;

    for (int n = 0; n < SLOTS; n++) {
        struct slot *slot = &own[n];

        if (!strcmp(order, "grow") && !slot->block && grown < GROWTH) {
            next_random(state);
            slot->size = 16 + *state % (1UL << (5 + *state / 65536 % 12));
            slot->block = take(slot->size);
            grown += slot->size;
        } else if (slot->block && !strcmp(order, "resize")) {
            slot->size += slot->size / 2;
            slot->block = enlarge(slot->block, slot->size);
        } else if (slot->block && (!strcmp(order, "clear") ||
                                   (!strcmp(order, "shrink") && n % 2))) {
            free(slot->block);
            slot->block = NULL;
            slot->size = 0;
        }
    }
}

static void work(long number)
{
    static __thread uint64_t state;

    if (!state)
        state = (uint64_t)number * 7919 + 88172645463325252ULL;
    obey(slots + number * SLOTS, &state);
}

static int child_status(void)
{
    static const char *const all[] = {"resize", "grow", "shrink", "clear", "grow", "clear"};
    uint64_t state = 77;
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        for (size_t n = 0; n < sizeof(all) / sizeof(*all); n++) {
            strcpy(order, all[n]);
            obey(slots, &state);
        }
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

static double pair_ns(void)
{
    long long from_ns = time_ns(CLOCK_THREAD_CPUTIME_ID);

    for (int n = 0; n < PAIRS; n++)
        free(malloc(64));
    return (double)(time_ns(CLOCK_THREAD_CPUTIME_ID) - from_ns) / PAIRS;
}

int main(int argc, char **argv)
{
    threads = argc > 1 ? atoi(argv[1]) : 1;
    slots = outside_the_heap((size_t)threads * SLOTS * sizeof(*slots));
    begin_gang(threads, work);
    say("ready\n");
    for (;;) {
        size_t size = 0, count = 0;

        hear(order, sizeof(order));
        if (!strcmp(order, "fork")) {
            tell("%d\n", child_status());
        } else if (!strcmp(order, "pairs")) {
            tell("%.3f\n", pair_ns());
        } else {
            take_turn();
            for (long n = 0; n < (long)threads * SLOTS; n++) {
                size += slots[n].size;
                count += slots[n].block != NULL;
            }
            tell("%zu %zu\n", size, count);
        }
    }
}
