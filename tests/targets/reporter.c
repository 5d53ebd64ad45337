// A program that reports allocations by itself, as OpenTelemetry's profiler expects it: what it
// says it has sampled, with weights of its own choice, and its books of that.
//
//   reporter THREADS OPERATIONS
//
// Says "ready", then hears lines: "run" has each thread allocate and free, and answers with the
// books, {"by_one": [blocks, bytes], …, "all": [blocks, bytes]}, of what is outstanding and of all
// that was allocated; "counters" answers with both semaphores; "fork" with how many of some forked
// children, which report too, have come to their end.
#include "command.h"
#include "usdt.h"

USDT_COUNTER(otel_memory, alloc);
USDT_COUNTER(otel_memory, free);

enum { SITES = 4, SLOTS = 64, CHILDREN = 20 };
static const char *const names[SITES] = {"by_one", "by_three", "by_many", "by_half"};
// In halves of a block.
static const unsigned long weights[SITES] = {2, 6, 8192, 3};

struct book {
    long halves;
    long bytes;
};

static struct book books[SITES + 1];
static int operations;
static pthread_barrier_t begin, end;

static void book(int site, size_t size, long sign)
{
    __atomic_add_fetch(&books[site].halves, sign * (long)weights[site], __ATOMIC_RELAXED);
    __atomic_add_fetch(&books[site].bytes, sign * (long)(size * weights[site] / 2),
                       __ATOMIC_RELAXED);
    if (sign > 0) {
        __atomic_add_fetch(&books[SITES].halves, (long)weights[site], __ATOMIC_RELAXED);
        __atomic_add_fetch(&books[SITES].bytes, (long)(size * weights[site] / 2),
                           __ATOMIC_RELAXED);
    }
}

#define SITE(name, number) \
    __attribute__((noinline)) static void *name(size_t size) \
    { \
        void *block = malloc(size); \
        if (otel_memory_alloc_semaphore) { \
            USDT_3(otel_memory, alloc, block, size, size * weights[number] / 2); \
            book(number, size, 1); \
        } \
        return block; \
    }
SITE(by_one, 0)
SITE(by_three, 1)
SITE(by_many, 2)
SITE(by_half, 3)

static void *(*const sites[SITES])(size_t) = {by_one, by_three, by_many, by_half};

struct slot {
    void *block;
    size_t size;
    int site;
    int is_reported;
};

__attribute__((noinline)) static void release(struct slot *slot)
{
    if (slot->is_reported && otel_memory_free_semaphore) {
        USDT_1(otel_memory, free, slot->block);
        book(slot->site, slot->size, -1);
    }
    free(slot->block);
    slot->block = NULL;
}

static void *work(void *argument)
{
    uint64_t state = (uintptr_t)argument + 88172645463325252ULL;
    struct slot *slots = calloc(SLOTS, sizeof(*slots));

    for (;;) {
        pthread_barrier_wait(&begin);
        for (int n = 0; n < operations; n++) {
            next_random(&state);
            struct slot *slot = &slots[state % SLOTS];

            if (slot->block) {
                release(slot);
                continue;
            }
            slot->site = state / SLOTS % SITES;
            slot->size = 2 * (1 + state / 4096 % 3000);
            slot->is_reported = otel_memory_alloc_semaphore > 0;
            slot->block = sites[slot->site](slot->size);
        }
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static int forked(void)
{
    int whole = 0;

    for (int n = 0; n < CHILDREN; n++) {
        int status = 1;
        pid_t child = fork();

        if (child == 0) {
            struct slot slot = {.site = 1, .size = 100, .is_reported = 1};

            for (int at = 0; at < 100; at++) {
                slot.block = by_three(slot.size);
                release(&slot);
            }
            _exit(0);
        }
        if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
            whole++;
    }
    return whole;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    char line[64], answer[1024];

    operations = argc > 2 ? atoi(argv[2]) : 1000;
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
    for (long n = 0; n < threads; n++)
        begin_thread(work, (void *)(n * 7919));
    say("ready\n");
    for (;;) {
        int used = 0;

        hear(line, sizeof(line));
        if (!strcmp(line, "run")) {
            pthread_barrier_wait(&begin);
            pthread_barrier_wait(&end);
            used = snprintf(answer, sizeof(answer), "{");
            for (int site = 0; site < SITES; site++)
                used += snprintf(answer + used, sizeof(answer) - (size_t)used,
                                 "\"%s\": [%.1f, %ld], ", names[site],
                                 (double)books[site].halves / 2, books[site].bytes);
            snprintf(answer + used, sizeof(answer) - (size_t)used, "\"all\": [%.1f, %ld]}\n",
                     (double)books[SITES].halves / 2, books[SITES].bytes);
        } else if (!strcmp(line, "counters")) {
            snprintf(answer, sizeof(answer), "%d %d\n", otel_memory_alloc_semaphore,
                     otel_memory_free_semaphore);
        } else {
            snprintf(answer, sizeof(answer), "%d\n", forked());
        }
        say(answer);
    }
}
