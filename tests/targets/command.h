// Talking to the test that started the program, without a byte of heap.
//
// The test writes one line per command to standard input and reads one line per answer
// from standard output.
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

// Overwrites what calls have left on the stack, pointers to lost blocks among it.
NOINLINE __attribute__((unused)) static void scrub(void)
{
    char room[1 << 15];

    memset(room, 0, sizeof(room));
    __asm__ volatile("" ::"r"(room) : "memory");
}

// Says "done" and waits until the test has no more to ask.
static inline void finish(void)
{
    say("done\n");
    wait_for_line();
}
