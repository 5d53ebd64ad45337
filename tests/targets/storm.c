// As many malloc/free pairs as possible, from several threads, under a stack of known depth.
//
//   storm THREADS DEPTH ALIVE
//
// Each thread keeps ALIVE blocks of 32 to 287 bytes and replaces them in random order; 0
// means that each block is freed at once. Hears a number of milliseconds, runs that long,
// answers with the number of pairs and the nanoseconds they took.
#include <stdatomic.h>

#include "command.h"

static atomic_int stopped;
static atomic_long pairs;
static void **all_blocks;
static long alive, depth;

NOINLINE static long churn(void **blocks, unsigned *dice)
{
    long done = 0;

    do { // some, however late it begins
        for (int n = 0; n < 64; n++, done++) {
            *dice = *dice * 1664525u + 1013904223u;
            size_t size = 32 + (*dice >> 24);

            if (alive) {
                void **slot = &blocks[(*dice >> 4) % (unsigned long)alive];

                free(*slot);
                *slot = malloc(size);
            } else {
                void *volatile block = malloc(size);

                free(block);
            }
        }
    } while (!atomic_load_explicit(&stopped, memory_order_relaxed));
    return done;
}

NOINLINE static long descend(long left, void **blocks, unsigned *dice)
{
    long done = left > 0 ? descend(left - 1, blocks, dice) : churn(blocks, dice);

    __asm__ volatile("" ::: "memory");
    return done;
}

static void work(long number)
{
    static __thread unsigned dice;

    dice = dice ? dice : (unsigned)number + 1;
    // Below: this function, the gang's and libc's; above: churn.
    pairs += descend(depth - 5, all_blocks + number * alive, &dice);
}

int main(int argc, char **argv)
{
    char line[128];

    (void)argc;
    depth = atol(argv[2]);
    alive = atol(argv[3]);
    all_blocks = outside_the_heap((size_t)(atol(argv[1]) * alive + 1) * sizeof(*all_blocks));
    begin_gang(atol(argv[1]), work);
    say("ready\n");
    for (;;) {
        struct timespec pause = {0};
        long long began;

        hear(line, sizeof(line));
        pause.tv_sec = atol(line) / 1000;
        pause.tv_nsec = atol(line) % 1000 * 1000000;
        pairs = 0;
        stopped = 0;
        began = now_ns();
        pthread_barrier_wait(&gang.begin);
        nanosleep(&pause, NULL);
        stopped = 1;
        pthread_barrier_wait(&gang.end);
        tell("%ld %lld\n", pairs, now_ns() - began);
    }
}
