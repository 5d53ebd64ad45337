// Programs of known truth in one: specimens MODE SECONDS [SPEED]
//
// Each mode allocates in its own way beside what most programs do: tables at the start,
// requests, sessions, a small cache. What leaks is allocated by functions whose names begin
// with leak_; at the end one line per such function tells how many blocks and bytes it has
// leaked and since when:
//
//   leak_request 1800 288000 0.1
//
// The program's clock runs SPEED times faster than the real one (default 1).
#include <time.h>

#include "command.h"

enum { STEPS_PER_S = 10, PENDING = 1 << 16 };

static double now_s;

// ---- chance, always the same ----

static unsigned long long seed = 88172645463325252ULL;

static double chance(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (double)(seed >> 11) / 9007199254740992.0;
}

// How many events of this rate fall into one step.
static int events(double per_s)
{
    double expected = per_s / STEPS_PER_S;
    int count = (int)expected;

    return count + (chance() < expected - count);
}

// ---- blocks that are freed later ----

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

// ---- the books of what leaks ----

static struct leak {
    const char *name;
    long blocks, bytes;
    double onset_s;
} leaks[4];

static void note_leak(const char *name, size_t size)
{
    struct leak *leak = leaks;

    while (leak->name && strcmp(leak->name, name))
        leak++;
    if (!leak->name)
        *leak = (struct leak){name, 0, 0, now_s};
    leak->blocks++;
    leak->bytes += (long)size;
}

// A block that is forgotten, or else freed after `life_s`.
static void leak_or_free(const char *name, void *block, size_t size, double share, double life_s)
{
    if (chance() < share)
        note_leak(name, size);
    else
        free_at(block, now_s + life_s);
}

// ---- what most programs do ----

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

// ---- leaks ----

NOINLINE static void leak_request(void)
{
    if (malloc(160))
        note_leak("leak_request", 160);
}

static void steady(void)
{
    for (int n = events(2); n > 0; n--)
        leak_request();
}

NOINLINE static void leak_buffer(double share, double life_s)
{
    leak_or_free("leak_buffer", malloc(256), 256, share, life_s);
}

static void churn(void)
{
    for (int n = events(12); n > 0; n--)
        leak_buffer(0.02, 0.5 * chance());
}

static void late(void)
{
    for (int n = events(4); n > 0; n--)
        leak_buffer(now_s < 250 ? 0 : 0.15, 2 * chance());
}

static void bursts(void)
{
    if ((int)now_s % 20 < 2)
        for (int n = events(20); n > 0; n--)
            leak_buffer(0.3, chance());
}

NOINLINE static void leak_on_error(int error)
{
    char *reply = malloc(900);

    if (error) {
        note_leak("leak_on_error", 900);
        return;
    }
    free_at(reply, now_s);
}

static void errors(void)
{
    for (int n = events(5); n > 0; n--)
        leak_on_error(chance() < 0.06);
}

NOINLINE static void leak_session(void)
{
    if (malloc(480))
        note_leak("leak_session", 480);
}

#define CALLER(n)                                                                                 \
    NOINLINE static void caller_##n(void)                                                         \
    {                                                                                             \
        leak_session();                                                                           \
    }
CALLER(0) CALLER(1) CALLER(2) CALLER(3) CALLER(4) CALLER(5) CALLER(6) CALLER(7)
CALLER(8) CALLER(9) CALLER(10) CALLER(11) CALLER(12) CALLER(13) CALLER(14) CALLER(15)

static void callers(void)
{
    static void (*const all[])(void) = {
        caller_0, caller_1, caller_2,  caller_3,  caller_4,  caller_5,  caller_6,  caller_7,
        caller_8, caller_9, caller_10, caller_11, caller_12, caller_13, caller_14, caller_15,
    };

    // Each about once in 50 seconds.
    for (int n = events(0.32); n > 0; n--)
        all[(int)(chance() * 16)]();
}

NOINLINE static void leak_entry(void)
{
    static char **entries;
    static size_t used, room;

    if (used == room) {
        room = room ? 2 * room : 64;
        entries = realloc(entries, room * sizeof(*entries));
    }
    entries[used++] = malloc(120);
    note_leak("leak_entry", 120);
}

static void container(void)
{
    for (int n = events(3); n > 0; n--)
        leak_entry();
}

// Objects with reference counts; one in fifty is counted once too often.
NOINLINE static void leak_object(void)
{
    double kind = chance();

    leak_or_free("leak_object", malloc(64), 64, 0.04, kind < 0.9 ? 0 : kind < 0.98 ? 2 : 15);
}

static void extension(void)
{
    for (int n = events(8); n > 0; n--)
        leak_object();
}

NOINLINE static void leak_page(int forget)
{
    char *page = malloc(1000);

    if (forget)
        note_leak("leak_page", 1000);
    else
        free_at(page, now_s + 1.5 * chance());
}

// ---- what only looks like a leak ----

static void quiet(void)
{
}

NOINLINE static void cache_page(int capacity)
{
    static char *pages[1024];
    static int next;

    free(pages[next]);
    pages[next] = malloc(600 + (size_t)(chance() * 1000));
    next = (next + 1) % capacity;
}

static void lru(void)
{
    for (int n = events(4); n > 0; n--)
        cache_page(300);
}

static void slow_lru(void)
{
    for (int n = events(3); n > 0; n--)
        cache_page(500);
}

// Ten blocks a second, every fifth of them forgotten, and a cache that fills for 24 seconds.
static void beside(void)
{
    static unsigned made;

    leak_page(made++ % 5 == 0);
    cache_page(240);
}

NOINLINE static void grow_pool(void)
{
    memset(malloc(4096), 1, 64);
}

static void pool(void)
{
    // Its high-water mark comes nearer ever more slowly: 120 chunks in all.
    static int chunks;
    static double level;

    level += (120 - level) / 40 / STEPS_PER_S;
    for (; chunks < (int)level; chunks++)
        grow_pool();
}

NOINLINE static void load_index(void)
{
    memset(malloc(64 + (size_t)(chance() * 900)), 1, 64);
}

static void startup(void)
{
    if (now_s < 20)
        for (int n = events(60); n > 0; n--)
            load_index();
}

NOINLINE static void arena_block(double until_s)
{
    free_at(malloc(500), until_s);
}

static void arena(void)
{
    double minute_end_s = 60 * ((int)now_s / 60 + 1);

    for (int n = events(4); n > 0; n--)
        arena_block(minute_end_s);
}

static void sawtooth(void)
{
    double end_s = 25 * ((int)now_s / 25 + 1);

    for (int n = events(5); n > 0; n--)
        arena_block(end_s);
}

NOINLINE static void make_object(double life_s)
{
    free_at(malloc(128), now_s + life_s);
}

static void generations(void)
{
    for (int n = events(7); n > 0; n--) {
        double kind = chance();

        make_object((kind < 0.85 ? 0.5 : kind < 0.97 ? 20 : 90) * (0.5 + chance()));
    }
}

NOINLINE static void append_log(void)
{
    static char *text;
    static size_t used, room;

    used += 300;
    if (used > room) {
        room = used + 4096;
        text = realloc(text, room);
    }
    text[used - 1] = 0;
}

static void log_regrown(void)
{
    for (int n = events(3); n > 0; n--)
        append_log();
}

static pthread_barrier_t turn;
enum { THREADS = 6, THREAD_SLOTS = 50 };

NOINLINE static void cache_in_thread(char **slots, unsigned key)
{
    free(slots[key % THREAD_SLOTS]);
    slots[key % THREAD_SLOTS] = malloc(256);
}

static void *cache_thread(void *number)
{
    static __thread char *slots[THREAD_SLOTS];
    unsigned key = (unsigned)(size_t)number, step = 0;

    for (;;) {
        pthread_barrier_wait(&turn);
        // The n-th begins after 10 n seconds, then uses a slot each second.
        if (now_s > 10 * (double)(size_t)number && step++ % STEPS_PER_S == 0)
            cache_in_thread(slots, key = key * 1103515245u + 12345u);
        pthread_barrier_wait(&turn);
    }
    return NULL;
}

static void thread_caches(void)
{
    static pthread_t threads[THREADS];

    if (!threads[0]) {
        pthread_barrier_init(&turn, NULL, THREADS + 1);
        for (size_t n = 0; n < THREADS; n++)
            pthread_create(&threads[n], NULL, cache_thread, (void *)n);
    }
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
}

NOINLINE static void any_buffer(double life_s)
{
    free_at(malloc(512), now_s + life_s);
}

// Temporaries and a cache that fills for 80 seconds, from one function.
static void mixed(void)
{
    for (int n = events(5); n > 0; n--)
        any_buffer(0.3 * chance());
    for (int n = events(3); n > 0; n--)
        any_buffer(80 + 10 * chance());
}

static const struct {
    const char *name;
    void (*step)(void);
} modes[] = {
    {"steady", steady},       {"churn", churn},         {"late", late},
    {"bursts", bursts},       {"errors", errors},       {"callers", callers},
    {"container", container}, {"extension", extension}, {"quiet", quiet},
    {"lru", lru},             {"slow_lru", slow_lru},   {"pool", pool},
    {"startup", startup},     {"arena", arena},         {"sawtooth", sawtooth},
    {"generations", generations}, {"log", log_regrown}, {"threads", thread_caches},
    {"mixed", mixed},         {"beside", beside},
};

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
    struct timespec start;
    char line[128];
    size_t mode = 0;

    if (argc < 3)
        return 2;
    while (mode < sizeof(modes) / sizeof(*modes) && strcmp(modes[mode].name, argv[1]))
        mode++;
    if (mode == sizeof(modes) / sizeof(*modes))
        return 2;
    wait_for_go();
    clock_gettime(CLOCK_MONOTONIC, &start);
    read_tables();
    for (long step = 1; step <= atol(argv[2]) * STEPS_PER_S; step++) {
        now_s = (double)step / STEPS_PER_S;
        sleep_until(start, now_s / speed);
        background();
        modes[mode].step();
        free_what_is_due();
    }
    for (struct leak *leak = leaks; leak->name; leak++) {
        snprintf(line, sizeof(line), "%s %ld %ld %.1f\n", leak->name, leak->blocks, leak->bytes,
                 leak->onset_s);
        say(line);
    }
    finish();
    return 0;
}
