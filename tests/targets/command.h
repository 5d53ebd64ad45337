// Talking to the test that started the program, without a byte of heap.
//
// The test writes one line per command to standard input and reads one line per answer
// from standard output.
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static inline void say(const char *text)
{
    size_t left = strlen(text);

    while (left) {
        ssize_t written = write(1, text, left);

        if (written <= 0)
            _exit(3);
        text += written;
        left -= (size_t)written;
    }
}

// Says what printf(3) would print.
__attribute__((format(printf, 1, 2))) static inline void tell(const char *format, ...)
{
    char text[1024];
    va_list values;

    va_start(values, format);
    vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    say(text);
}

// Reads a line without its end into line; ends the program at the end of input.
static inline void hear(char *line, size_t room)
{
    size_t used = 0;

    for (;;) {
        char c;

        if (read(0, &c, 1) != 1)
            _exit(0);
        if (c == '\n')
            break;
        if (used + 1 < room)
            line[used++] = c;
    }
    line[used] = 0;
}

static inline void wait_for_line(void)
{
    char line[64];

    hear(line, sizeof(line));
}

// Says "ready" and waits for the word to go on.
static inline void wait_for_go(void)
{
    say("ready\n");
    wait_for_line();
}

static inline long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

// Maps memory, of a file if there is one; flags beside those that are always wanted.
static inline void *map_memory(void *at, size_t size, int rights, int flags, int file)
{
    int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *memory = mmap(at, size, rights, kind | flags, file, 0);

    if (memory == MAP_FAILED)
        _exit(7);
    return memory;
}

static inline void *outside_the_heap(size_t size)
{
    return map_memory(NULL, size, PROT_READ | PROT_WRITE, 0, -1);
}

// Waits for a child, which has to end well.
static inline void wait_for(pid_t child)
{
    int status;

    if (waitpid(child, &status, 0) != child || status)
        _exit(4);
}

static inline pthread_t begin_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, argument))
        _exit(8);
    return thread;
}

// Threads that stay, and do their work once in each turn.
static struct {
    pthread_barrier_t begin, end;
    void (*work)(long number);
} gang __attribute__((unused));

__attribute__((unused)) static void *take_turns_in_gang(void *number)
{
    for (;;) {
        pthread_barrier_wait(&gang.begin);
        gang.work((long)number);
        pthread_barrier_wait(&gang.end);
    }
    return NULL;
}

static inline void begin_gang(long threads, void (*work)(long number))
{
    gang.work = work;
    pthread_barrier_init(&gang.begin, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&gang.end, NULL, (unsigned)threads + 1);
    for (long n = 0; n < threads; n++)
        begin_thread(take_turns_in_gang, (void *)n);
}

static inline void take_turn(void)
{
    pthread_barrier_wait(&gang.begin);
    pthread_barrier_wait(&gang.end);
}

// Overwrites what calls have left on the stack, pointers to lost blocks among it.
NOINLINE __attribute__((unused)) static void scrub(void)
{
    char room[1 << 15];

    memset(room, 0, sizeof(room));
    __asm__ volatile("" ::"r"(room) : "memory");
}

// Loses blocks of zeros.
NOINLINE __attribute__((unused)) static void lose_blocks(int count, size_t size)
{
    while (count--) {
        void *volatile lost = calloc(1, size);

        (void)lost;
    }
}

// Says "done" and waits until the test has no more to ask.
static inline void finish(void)
{
    say("done\n");
    wait_for_line();
}
