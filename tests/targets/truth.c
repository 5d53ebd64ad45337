// Preloaded into any program: what libgcc's unwinder says of the stack at an allocation.
//
// Now and then, where the program calls malloc, a block of a size that tells its number is
// allocated and freed at once, and backtrace() is written down for that number: both see
// the same callers. Environment:
//
//   TRUTH_FILE   where to write: TRUTH_MOST records of 256 words, the first the number of
//                frames, then return addresses, innermost first
//   TRUTH_EVERY  one in so many calls of malloc
//   TRUTH_PAUSE  after so many records, wait until the test has processed all of them
//   TRUTH_SOCKET descriptor for that: a byte says that there are so many, one that they are done
//
// The program stops itself (SIGSTOP) before main; the test attaches and continues it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
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
static int test;
static __thread int busy;

// Too many stacks at once would be lost on a busy machine.
static void await_test(void)
{
    char byte = '!';
    int before = errno;

    while (send(test, &byte, 1, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
    while (recv(test, &byte, 1, 0) < 0 && errno == EINTR)
        ;
    errno = before;
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
        await_test();
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
    const char *pause = getenv("TRUTH_PAUSE"), *socket = getenv("TRUTH_SOCKET");
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
    memory = mmap(NULL, sizeof(uint64_t) * WORDS * TRUTH_MOST, PROT_READ | PROT_WRITE, MAP_SHARED,
                  file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return;
    if (pause && socket) {
        pause_after = atol(pause);
        test = atoi(socket);
        fcntl(test, F_SETFD, FD_CLOEXEC); // not for its children
    }
    busy = 1;
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    backtrace(frames, 4); // loads libgcc
    busy = 0;
    kill(getpid(), SIGSTOP);
    records = memory;
}
