// A heap of each kind: arenas of threads, large blocks, aligned blocks, free lists. Answers "trim" with
// the result of malloc_trim(0), and every other line with mallinfo2 as JSON, or, with jemalloc and
// tcmalloc, the bytes they count as allocated ("drop" frees many blocks first); ends with its input.
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace app {
struct Shape {
    virtual ~Shape() {}
    long side = 1;
};
struct Circle : Shape {
    char more[40];
};
struct Square : Shape {
    char more[200];
};
}

#pragma weak mallinfo2 // glibc 2.33
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // mallinfo, which it replaces

extern "C" {
int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak)); // jemalloc
int MallocExtension_GetNumericProperty(const char *, size_t *) __attribute__((weak)); // tcmalloc
}

static size_t jemalloc_allocated()
{
    uint64_t epoch = 1;
    size_t allocated = 0, size = sizeof(allocated);
    mallctl("epoch", nullptr, nullptr, &epoch, sizeof(epoch));
    mallctl("stats.allocated", &allocated, &size, nullptr, 0);
    return allocated;
}

static void answer(size_t arena, size_t in_use, size_t mapped)
{
    printf("{\"arena\": %zu, \"uordblks\": %zu, \"hblkhd\": %zu}\n", arena, in_use, mapped);
}

static pthread_barrier_t filled;
static app::Shape *shapes[4000];
static void *kept[20000];
static bool has_many_heaps; // in the arena of each thread

static void *fill(void *)
{
    static __thread void *own[3000];
    for (int n = 0; n < 3000; n++)
        own[n] = malloc(24 + n % 700);
    for (int n = 0; has_many_heaps && n < 2000; n++)
        own[n % 2] = malloc(100000);
    for (int n = 0; n < 3000; n += 3)
        free(own[n]);
    pthread_barrier_wait(&filled);
    pause();
    return own;
}

int main(int, char **arguments)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); // the kernel would change what is resident
    bool foreign = arguments[1] && !strcmp(arguments[1], "sbrk");
    has_many_heaps = arguments[1] && !strcmp(arguments[1], "heaps");
    pthread_barrier_init(&filled, nullptr, 4);
    for (int n = 0; n < 4000; n++)
        shapes[n] = n % 4 ? (app::Shape *)new app::Circle : new app::Square;
    for (int n = 0; n < 20000; n++) {
        kept[n] = malloc(16 + n % 1500);
        if (foreign && n % 5000 == 4999)
            memset(sbrk(12288), 0, 12288);
    }
    for (int n = 0; n < 20000; n += 2)
        free(kept[n]);
    for (int n = 0; n < 6; n++)
        memset(malloc(300000 + 70000 * n), 1, 100);
    memset(aligned_alloc(4096, 500000), 1, 500000);
    memset(aligned_alloc(64, 400000), 1, 400000);
    pthread_t thread;
    for (int n = 0; n < 3; n++)
        pthread_create(&thread, nullptr, fill, nullptr);
    pthread_barrier_wait(&filled);
    static char out[1 << 16], line[256];
    setvbuf(stdout, out, _IOFBF, sizeof(out));
    puts("ready");
    fflush(stdout);
    while (read(0, line, sizeof(line)) > 0) {
        for (int n = 1; !strncmp(line, "drop", 4) && n < 15000; n += 2)
            free(kept[n]);
        if (mallctl) {
            printf("%zu\n", jemalloc_allocated());
        } else if (MallocExtension_GetNumericProperty) {
            size_t allocated = 0;
            MallocExtension_GetNumericProperty("generic.current_allocated_bytes", &allocated);
            printf("%zu\n", allocated);
        } else if (!strncmp(line, "trim", 4)) {
            printf("%d\n", malloc_trim(0));
        } else if (mallinfo2) {
            struct mallinfo2 info = mallinfo2();
            answer(info.arena, info.uordblks, info.hblkhd);
        } else {
            struct mallinfo info = mallinfo(); // what it counts in int is enough here
            answer(info.arena, info.uordblks, info.hblkhd);
        }
        fflush(stdout);
    }
}
