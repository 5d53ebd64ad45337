// Allocates before and while it is traced, and keeps books. "earlier THREADS BLOCKS LOST": each
// thread holds BLOCKS blocks, and LOST circles are lost. Then it prints "ready". Lines are orders:
// "run" and "rest" let the threads replace blocks at random, or stop; "books" prints the blocks and
// the usable bytes that are live; "drop" frees half of all blocks; "lose N" loses
// circles; "end" ends it.
#include <malloc.h>

#include <atomic>
#include <vector>

#include "command.h"

namespace app {
struct Circle {
    virtual ~Circle() {}
    virtual int area() { return more[0]; }
    char more[80];
};
}

static std::atomic<bool> runs{false};
static std::atomic<int> resting{0};

struct Shelf {
    std::vector<void *> blocks;
    uint64_t random;
    NOINLINE void *make()
    {
        uint64_t size = 16 + next_random(&random) % 500;
        return malloc(next_random(&random) % 500 ? size : 200000);
    }
    void replace()
    {
        void *&block = blocks[next_random(&random) % blocks.size()];
        if (next_random(&random) % 3 == 0) {
            block = realloc(block, 16 + next_random(&random) % 700);
        } else {
            free(block);
            block = make();
        }
    }
};

static std::vector<Shelf *> shelves;

static void *work(void *shelf)
{
    for (bool was_running = false;;) {
        if (!runs) {
            resting += was_running;
            was_running = false;
            usleep(1000);
        } else {
            was_running = true;
            for (int n = 0; n < 100; n++)
                ((Shelf *)shelf)->replace();
        }
    }
    return nullptr;
}

static void tell_books(void)
{
    unsigned long count = 0, size = 0;
    for (Shelf *shelf : shelves)
        for (void *block : shelf->blocks)
            if (block) {
                count++;
                size += malloc_usable_size(block);
            }
    tell("%lu %lu\n", count, size);
}

NOINLINE static void lose(int count)
{
    app::Circle *volatile last = nullptr;
    for (int n = 0; n < count; n++) {
        last = new app::Circle;
        last->area();
    }
    last = nullptr;
}

int main(int, char **argv)
{
    int threads = atoi(argv[1]);
    lose(atoi(argv[3]));
    for (int n = 0; n < threads; n++) {
        Shelf *shelf = new Shelf;
        shelf->random = 88172645463325252ULL + 7919 * n;
        shelf->blocks.resize(atoi(argv[2]));
        for (void *&block : shelf->blocks)
            block = shelf->make();
        shelves.push_back(shelf);
        begin_thread(work, shelf);
    }
    say("ready\n");
    for (;;) {
        char line[32];
        hear(line, sizeof line);
        if (!strcmp(line, "run")) {
            runs = true;
            say("running\n");
        } else if (!strcmp(line, "rest")) {
            resting = 0;
            runs = false;
            while (resting < threads)
                usleep(1000);
            say("resting\n");
        } else if (!strncmp(line, "lose", 4)) {
            lose(atoi(line + 4));
            say("lost\n");
        } else if (!strcmp(line, "books")) {
            tell_books();
        } else if (!strcmp(line, "drop")) {
            for (Shelf *shelf : shelves)
                for (size_t at = 0; at < shelf->blocks.size(); at += 2) {
                    free(shelf->blocks[at]);
                    shelf->blocks[at] = nullptr;
                }
            say("dropped\n");
        } else {
            return 0;
        }
    }
}
