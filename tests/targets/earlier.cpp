// Allocates before and while it is traced, and keeps books. "earlier THREADS BLOCKS LOST": each
// thread holds BLOCKS blocks, and LOST circles are lost. Then it prints "ready". Lines are orders:
// "run" and "rest" let the threads replace blocks at random, or stop; "books" prints the blocks and
// the usable bytes that are live; "drop" frees half of all blocks; "lose N" loses
// circles; "end" ends it.
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <vector>

#define NOINLINE __attribute__((noinline))

namespace app {
struct Circle {
    virtual ~Circle() {}
    virtual int area() { return more[0]; }
    char more[80];
};
}

static std::atomic<bool> runs{false};
static std::atomic<int> resting{0};
static int blocks_each;

struct Shelf {
    std::vector<void *> blocks;
    uint64_t random;
    uint64_t next()
    {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random;
    }
    NOINLINE void *make()
    {
        uint64_t size = 16 + next() % 500;
        if (next() % 500 == 0)
            size = 200000;
        return malloc(size);
    }
    void replace()
    {
        size_t at = next() % blocks.size();
        if (next() % 3 == 0) {
            blocks[at] = realloc(blocks[at], 16 + next() % 700);
            return;
        }
        free(blocks[at]);
        blocks[at] = make();
    }
};

static std::vector<Shelf *> shelves;

static void *work(void *shelf)
{
    bool was_running = false;
    for (;;) {
        if (!runs) {
            if (was_running)
                resting++;
            was_running = false;
            struct timespec pause = {0, 1000000};
            nanosleep(&pause, nullptr);
            continue;
        }
        was_running = true;
        for (int n = 0; n < 100; n++)
            ((Shelf *)shelf)->replace();
    }
    return nullptr;
}

static void print_books(void)
{
    unsigned long count = 0, size = 0;
    for (Shelf *shelf : shelves)
        for (void *block : shelf->blocks)
            if (block) {
                count++;
                size += malloc_usable_size(block);
            }
    printf("%lu %lu\n", count, size);
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
    blocks_each = atoi(argv[2]);
    lose(atoi(argv[3]));
    for (int n = 0; n < threads; n++) {
        Shelf *shelf = new Shelf;
        shelf->random = 88172645463325252ULL + 7919 * n;
        shelf->blocks.resize(blocks_each);
        for (void *&block : shelf->blocks)
            block = shelf->make();
        shelves.push_back(shelf);
        pthread_t thread;
        pthread_create(&thread, nullptr, work, shelf);
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    puts("ready");
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "run", 3)) {
            runs = true;
            puts("running");
        } else if (!strncmp(line, "rest", 4)) {
            resting = 0;
            runs = false;
            while (resting < threads) {
                struct timespec pause = {0, 1000000};
                nanosleep(&pause, nullptr);
            }
            puts("resting");
        } else if (!strncmp(line, "lose", 4)) {
            lose(atoi(line + 4));
            puts("lost");
        } else if (!strncmp(line, "books", 5)) {
            print_books();
        } else if (!strncmp(line, "drop", 4)) {
            for (Shelf *shelf : shelves)
                for (size_t at = 0; at < shelf->blocks.size(); at += 2) {
                    free(shelf->blocks[at]);
                    shelf->blocks[at] = nullptr;
                }
            puts("dropped");
        } else {
            break;
        }
    }
    return 0;
}
