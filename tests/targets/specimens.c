// Leaks beside what most programs do: specimens MODE SECONDS [SPEED]
//
//   steady   forgets 2 blocks of 160 bytes a second
//   beside   forgets every fifth of 10 blocks of 1,000 bytes a second; a cache fills for 24 s
//
// Both have tables from the start, requests, sessions, and a small cache of names. Functions that
// leak begin with leak_. The program's clock runs SPEED times faster than the real one (default 1).
#include "command.h"

enum { STEPS_PER_S = 10, PENDING = 1 << 16 };

static double now_s;
static uint64_t seed = 88172645463325252ULL; // chance is always the same

static double chance(void)
{
    return (double)(next_random(&seed) >> 11) / 9007199254740992.0;
}

// How many events of this rate fall into one step.
static int events(double per_s)
{
    double expected = per_s / STEPS_PER_S;
    int count = (int)expected;

    return count + (chance() < expected - count);
}

static struct {
    void *block;
    double due_s;
} pending[PENDING];
static int n_pending;

static void free_at(void *block, double due_s)
{
    if (n_pending == PENDING)
        abort();
    pending[n_pending].block = block;
    pending[n_pending++].due_s = due_s;
}

static void free_what_is_due(void)
{
    for (int n = 0; n < n_pending;) {
        if (pending[n].due_s <= now_s) {
            free(pending[n].block);
            pending[n] = pending[--n_pending];
        } else {
            n++;
        }
    }
}

NOINLINE static void read_tables(void)
{
    for (int n = 0; n < 150; n++)
        memset(malloc(200 + 40 * (n % 20)), 1, 200);
}

NOINLINE static void handle_request(void)
{
    char *buffer = malloc(300 + (size_t)(chance() * 4000));

    buffer[0] = 1;
    free_at(buffer, now_s);
}

NOINLINE static void open_session(void)
{
    free_at(malloc(700), now_s + 3 + 10 * chance());
}

NOINLINE static void remember_name(void)
{
    static char *names[40];
    char **name = &names[(int)(chance() * 40)];

    free(*name);
    *name = malloc(100 + (size_t)(chance() * 300));
}

static void background(void)
{
    for (int n = events(1.5); n > 0; n--)
        handle_request();
    for (int n = events(0.4); n > 0; n--)
        open_session();
    for (int n = events(0.6); n > 0; n--)
        remember_name();
}

NOINLINE static void leak_request(void)
{
    if (!malloc(160))
        abort();
}

static void steady(void)
{
    for (int n = events(2); n > 0; n--)
        leak_request();
}

NOINLINE static void leak_page(int forget)
{
    void *page = malloc(1000);

    if (!forget)
        free_at(page, now_s + 1.5 * chance());
}

NOINLINE static void cache_page(void)
{
    static char *pages[240];
    static size_t next;

    free(pages[next]);
    pages[next] = malloc(600 + (size_t)(chance() * 1000));
    next = (next + 1) % (sizeof(pages) / sizeof(*pages));
}

static void beside(void)
{
    static unsigned made;

    leak_page(made++ % 5 == 0);
    cache_page();
}

static void sleep_until(struct timespec start, double real_s)
{
    long ns = start.tv_nsec + (long)((real_s - (long)real_s) * 1e9);

    start.tv_sec += (long)real_s + ns / 1000000000;
    start.tv_nsec = ns % 1000000000;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL);
}

int main(int argc, char **argv)
{
    double speed = argc > 3 ? atof(argv[3]) : 1;
    void (*step_of_mode)(void) = strcmp(argv[1], "steady") ? beside : steady;
    struct timespec start;

    wait_for_go();
    clock_gettime(CLOCK_MONOTONIC, &start);
    read_tables();
    for (long step = 1; step <= atol(argv[2]) * STEPS_PER_S; step++) {
        now_s = (double)step / STEPS_PER_S;
        sleep_until(start, now_s / speed);
        background();
        step_of_mode();
        free_what_is_due();
    }
    finish();
    return 0;
}
