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
static struct {
    void *block;
    double due_s;
} pending[PENDING];
static int n_pending;

static double chance(void)
{
    return (double)(next_random(&seed) >> 11) / 9007199254740992.0;
}

// Whether an event of this rate falls into this step.
static int happens(double per_s)
{
    return chance() < per_s / STEPS_PER_S;
}

static void free_at(void *block, double due_s)
{
    if (n_pending == PENDING)
        abort();
    pending[n_pending].block = block;
    pending[n_pending++].due_s = due_s;
}

static void free_what_is_due(void)
{
    for (int n = n_pending - 1; n >= 0; n--)
        if (pending[n].due_s <= now_s) {
            free(pending[n].block);
            pending[n] = pending[--n_pending];
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

NOINLINE static void leak_request(void)
{
    if (!malloc(160))
        abort();
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

static void step(int is_steady)
{
    static unsigned made;

    if (happens(1.5))
        handle_request();
    if (happens(0.4))
        open_session();
    if (happens(0.6))
        remember_name();
    if (!is_steady) {
        leak_page(made++ % 5 == 0);
        cache_page();
    } else if (happens(2)) {
        leak_request();
    }
}

int main(int argc, char **argv)
{
    double speed = argc > 3 ? atof(argv[3]) : 1;
    long long begun_ns;

    wait_for_go();
    begun_ns = now_ns();
    read_tables();
    for (long n = 1; n <= atol(argv[2]) * STEPS_PER_S; n++) {
        long long left_ns;

        now_s = (double)n / STEPS_PER_S;
        left_ns = begun_ns + (long long)(now_s / speed * 1e9) - now_ns();
        if (left_ns > 0)
            usleep((useconds_t)(left_ns / 1000));
        step(!strcmp(argv[1], "steady"));
        free_what_is_due();
    }
    finish();
    return 0;
}
