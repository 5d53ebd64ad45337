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
static const char *const names[] = {"by_one", "by_three", "by_many", "by_half", "all"};
// In halves of a block.
static const unsigned long weights[SITES] = {2, 6, 8192, 3};

struct book {
    long halves;
    long bytes;
};

static struct book books[SITES + 1];
static int operations;

static void add(struct book *book, long halves, size_t size)
{
    __atomic_add_fetch(&book->halves, halves, __ATOMIC_RELAXED);
    __atomic_add_fetch(&book->bytes, halves * (long)size / 2, __ATOMIC_RELAXED);
}

static void book(int site, size_t size, long sign)
{
    add(&books[site], sign * (long)weights[site], size);
    if (sign > 0)
        add(&books[SITES], (long)weights[site], size);
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

static void work(long number)
{
    static __thread uint64_t state;
    static __thread struct slot slots[SLOTS];

    if (!state)
        state = (uint64_t)number * 7919 + 88172645463325252ULL;
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
    char line[64];

    if (argc < 3)
        return 0;
    operations = atoi(argv[2]);
    begin_gang(atol(argv[1]), work);
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        if (!strcmp(line, "run")) {
            take_turn();
            for (int site = 0; site <= SITES; site++)
                tell("%s\"%s\": [%.1f, %ld]", site ? ", " : "{", names[site],
                     (double)books[site].halves / 2, books[site].bytes);
            say("}\n");
        } else if (!strcmp(line, "counters")) {
            tell("%d %d\n", otel_memory_alloc_semaphore, otel_memory_free_semaphore);
        } else {
            tell("%d\n", forked());
        }
    }
}
