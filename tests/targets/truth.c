// Preloaded into any program: what libgcc's unwinder says of the stack at an allocation.
//
// Now and then, where the program calls malloc, a block of a size that tells its number is
// allocated and freed at once, and backtrace() is written down for that number: both see
// the same callers. Environment:
//
//   TRUTH_FILE   where to write: TRUTH_MOST records of 256 words, the first the number of
//                frames, then return addresses, innermost first
//   TRUTH_EVERY  one in so many calls of malloc
//   TRUTH_PAUSE  after so many records, wait until the test has looked at all of them: behind
//                the records, a word says how many were written, the next one how many were
//                looked at
//
// The program stops itself (SIGSTOP) before main; the test attaches and continues it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FIRST_SIZE (1UL << 27)
#define TRUTH_MOST 20000
#define WORDS 256

extern void *__libc_malloc(size_t size);

// The definitions behind this one: libc's, or of whatever is preloaded after it.
static void *(*next_malloc)(size_t size);
static void (*next_free)(void *block);

static uint64_t (*records)[WORDS];
static atomic_long used, calls;
static long every = 1, pause_after;
static _Atomic uint64_t *written, *looked_at;
static __thread int busy;

// Too many stacks at once would be lost on a busy machine.
static void await_test(long count)
{
    static const struct timespec moment = {.tv_nsec = 100000};

    atomic_store(written, (uint64_t)count);
    while (atomic_load(looked_at) < (uint64_t)count)
        nanosleep(&moment, NULL);
}

__attribute__((noinline)) static void write_down(void)
{
    long number = atomic_fetch_add(&used, 1);
    void *volatile block;

    if (number >= TRUTH_MOST)
        return;
    block = next_malloc(FIRST_SIZE + (size_t)number);
    records[number][0] = (uint64_t)backtrace((void **)&records[number][1], WORDS - 1);
    next_free(block);
    __asm__ volatile("" ::: "memory");
    if (pause_after && (number + 1) % pause_after == 0)
        await_test(number + 1);
}

void *malloc(size_t size)
{
    void *block = __libc_malloc(size);

    if (records && !busy && atomic_fetch_add(&calls, 1) % every == 0) {
        busy = 1;
        write_down();
        busy = 0;
    }
    return block;
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("TRUTH_FILE"), *rate = getenv("TRUTH_EVERY");
    const char *pause = getenv("TRUTH_PAUSE");
    const size_t size = sizeof(uint64_t) * WORDS * (TRUTH_MOST + 1);
    void *frames[4], *memory;
    int file;

    if (!name)
        return;
    unsetenv("LD_PRELOAD"); // not for its children
    if (rate)
        every = atol(rate);
    file = open(name, O_RDWR);
    if (file < 0)
        return;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return;
    if (pause)
        pause_after = atol(pause);
    written = (_Atomic uint64_t *)((uint64_t(*)[WORDS])memory)[TRUTH_MOST];
    looked_at = written + 1;
    busy = 1;
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    backtrace(frames, 4); // loads libgcc
    busy = 0;
    kill(getpid(), SIGSTOP);
    records = memory;
}
