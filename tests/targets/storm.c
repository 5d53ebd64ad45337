// As many malloc/free pairs as possible, from several threads, under a stack of known depth.
//
//   storm THREADS DEPTH ALIVE
//
// Each thread keeps ALIVE blocks of 32 to 287 bytes and replaces them in random order; 0
// means that each block is freed at once. Hears a number of milliseconds, runs that long,
// answers with the number of pairs and the nanoseconds they took.
#include <stdatomic.h>

#include "command.h"

static pthread_barrier_t barrier;
static atomic_int stopped;
static atomic_long pairs;
static long alive, depth;

NOINLINE static long churn(void **blocks, unsigned *dice)
{
    long done = 0;

    while (!atomic_load_explicit(&stopped, memory_order_relaxed)) {
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
    }
    return done;
}

NOINLINE static long descend(long left, void **blocks, unsigned *dice)
{
    long done = left > 0 ? descend(left - 1, blocks, dice) : churn(blocks, dice);

    __asm__ volatile("" ::: "memory");
    return done;
}

static void *work(void *number)
{
    unsigned dice = (unsigned)(size_t)number + 1;
    void **blocks = calloc((size_t)alive + 1, sizeof(*blocks));

    for (;;) {
        pthread_barrier_wait(&barrier);
        // Below: this function and libc's; above: churn.
        pairs += descend(depth - 4, blocks, &dice);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char line[128];
    long threads;

    if (argc < 4)
        return 2;
    threads = atol(argv[1]);
    depth = atol(argv[2]);
    alive = atol(argv[3]);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (long n = 0; n < threads; n++)
        begin_thread(work, (void *)n);
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
        pthread_barrier_wait(&barrier);
        nanosleep(&pause, NULL);
        stopped = 1;
        pthread_barrier_wait(&barrier);
        tell("%ld %lld\n", pairs, now_ns() - began);
    }
}
