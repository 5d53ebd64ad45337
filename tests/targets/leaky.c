// A small server-like program with one leak among things that only look like one.
//
//   record_request   leaks: 160 bytes per request, lost when a newer one takes its place
//   cache_lookup     a cache: grows to 2,000 entries, then replaces the oldest
//   render_page      busy: large temporary buffers, all of them freed
//   append_log       a log buffer that realloc doubles now and then
//
// Runs for the number of seconds given (default 60), then ends.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

enum { THREADS = 3, CACHE_ENTRIES = 2000, RECENT = 64 };

static volatile int stopped;

struct request {
    unsigned number;
    char path[156];
};

static struct request *recent[RECENT];
static pthread_mutex_t recent_lock = PTHREAD_MUTEX_INITIALIZER;

NOINLINE static void record_request(unsigned number, const char *path)
{
    struct request *request = malloc(sizeof(*request));

    request->number = number;
    snprintf(request->path, sizeof(request->path), "%s", path);
    pthread_mutex_lock(&recent_lock);
    recent[number % RECENT] = request; // the request that was here should be freed
    pthread_mutex_unlock(&recent_lock);
}

static char *cache[CACHE_ENTRIES];
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;

NOINLINE static void cache_lookup(unsigned key)
{
    unsigned slot = key % CACHE_ENTRIES;
    char *entry = malloc(400 + key % 800);

    memset(entry, (int)key, 400);
    pthread_mutex_lock(&cache_lock);
    free(cache[slot]);
    cache[slot] = entry;
    pthread_mutex_unlock(&cache_lock);
}

NOINLINE static unsigned render_page(unsigned seed)
{
    unsigned sum = 0;

    for (int part = 0; part < 8; part++) {
        size_t size = 20000 + (seed * 7919 + part) % 40000;
        unsigned char *buffer = malloc(size);

        memset(buffer, part, size);
        sum += buffer[size / 2];
        free(buffer);
    }
    return sum;
}

static char *log_text;
static size_t log_used, log_room;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

NOINLINE static void append_log(const char *line)
{
    size_t length = strlen(line);

    pthread_mutex_lock(&log_lock);
    if (log_used + length > log_room) {
        log_room = log_room ? 2 * log_room : 4096;
        log_text = realloc(log_text, log_room);
    }
    memcpy(log_text + log_used, line, length);
    log_used += length;
    pthread_mutex_unlock(&log_lock);
}

NOINLINE static void handle_request(unsigned number)
{
    char path[64];

    snprintf(path, sizeof(path), "/item/%u", number);
    record_request(number, path);
    cache_lookup(number * 2654435761u);
    if (render_page(number) == 1)
        path[0] = 0;
    if (number % 16 == 0)
        append_log(path);
}

static void *serve(void *first)
{
    unsigned number = (unsigned)(size_t)first;

    while (!stopped) {
        handle_request(number += THREADS);
        usleep(2000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int seconds = argc > 1 ? atoi(argv[1]) : 60;
    pthread_t threads[THREADS];

    for (size_t n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, serve, (void *)n);
    sleep((unsigned)seconds);
    stopped = 1;
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    return 0;
}
