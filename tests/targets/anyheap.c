// A heap of glibc in any state: ``anyheap SEED``. Each line it gets is answered with mallinfo2 as
// JSON, after some thousand random allocations and frees by a random number of threads, in sizes that
// leave chunks in few bins or in nearly all. Ends with its input.
#include <malloc.h>

#include "command.h"

enum { THREADS = 6, KEPT = 3000 };

static void *kept[THREADS + 1][KEPT];
static unsigned seeds[THREADS + 1];
static int has_all_bins;

static size_t any_size(unsigned *seed)
{
    int bits = 4 + rand_r(seed) % 16;

    if (has_all_bins) // each step from one small or large bin to the next is a size
        bits = 4 + rand_r(seed) % 14;
    return (size_t)(rand_r(seed) % (1 << bits)) + 1;
}

static void churn(long number)
{
    unsigned *seed = &seeds[number];
    unsigned freed = 10 + rand_r(seed) % 85; // percent

    for (int n = 0; n < 6000; n++) {
        void **one = &kept[number][rand_r(seed) % KEPT];

        free(*one);
        *one = NULL;
        if ((unsigned)(rand_r(seed) % 100) >= freed)
            *one = malloc(any_size(seed));
    }
}

// The sizes that have bins of their own.
static const struct {
    size_t first, last, step;
} bins[] = {
    {24, 1016, 16},          {1064, 3112, 64},        {3624, 10792, 512},
    {12328, 45096, 4096},    {65576, 163880, 32768},  {262184, 786472, 262144},
};

// A free chunk of every size that has a bin of its own, each between blocks that stay.
static void fill_bins(void)
{
    static void *one[200][9];
    size_t sizes[200];
    int count = 0;

    for (size_t n = 0; n < sizeof(bins) / sizeof(*bins); n++)
        for (size_t size = bins[n].first; size <= bins[n].last; size += bins[n].step)
            sizes[count++] = size;
    for (int n = 0; n < count; n++)
        for (int m = 0; m < 9; m++) { // seven of them stay in the thread's cache
            one[n][m] = malloc(sizes[n]);
            kept[THREADS][(n * 9 + m) % KEPT] = malloc(24); // what was there is lost
        }
    for (int n = 0; n < count; n++)
        for (int m = 0; m < 9; m++)
            free(one[n][m]);
    free(malloc(1000000)); // sorts what was freed
}

int main(int argc, char **argv)
{
    unsigned seed = (unsigned)atoi(argv[argc - 1]);
    unsigned threads = rand_r(&seed) % 2 ? rand_r(&seed) % (THREADS + 1) : 0;
    char line[64];
    int states = 0;

    has_all_bins = rand_r(&seed) % 3 == 0;
    mallopt(M_ARENA_MAX, 1 + (int)(rand_r(&seed) % 64));
    mallopt(M_MXFAST, (int)(rand_r(&seed) % 160));
    if (has_all_bins) {
        mallopt(M_MMAP_THRESHOLD, 32 << 20);
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
    } else if (rand_r(&seed) % 2) {
        mallopt(M_MMAP_THRESHOLD, 1 << (14 + rand_r(&seed) % 12));
    }
    if (rand_r(&seed) % 2)
        mallopt(M_TOP_PAD, (int)(rand_r(&seed) % (1 << 20)));
    for (unsigned n = 0; n <= THREADS; n++)
        seeds[n] = seed + n;
    begin_gang(threads, churn);
    say("ready\n");
    while (fgets(line, sizeof(line), stdin)) {
        struct mallinfo2 info;

        pthread_barrier_wait(&gang.begin);
        if (has_all_bins) // while the heap is new, nothing else is free
            fill_bins();
        if (!has_all_bins || states++)
            churn(THREADS);
        pthread_barrier_wait(&gang.end);
        info = mallinfo2();
        tell("{\"arena\": %zu, \"uordblks\": %zu, \"hblkhd\": %zu}\n", info.arena, info.uordblks,
             info.hblkhd);
    }
    return 0;
}
