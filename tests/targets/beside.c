// Has a library that calls the C library past what the program has preloaded.
//
//   beside WAY LIBRARY
//
// Says "ready". At a line it hears, it begins 4 threads that allocate without end and keep each
// hundredth block. Once each of them keeps 5, it opens the library: to bind to what that needs before
// all else (deep), or in a namespace of its own (namespace), which has another C library. Through it
// it keeps and frees blocks, in the first case those of each other as well. When each thread keeps
// 20 it ends them, and answers with what it keeps: blocks and bytes.
#define _GNU_SOURCE
#include <dlfcn.h>

#include "command.h"

enum { THREADS = 4, KEPT = 100 };

static void *volatile kept[THREADS][10000];
static int counts[THREADS];
static int is_over;
static void *own[KEPT], *its[KEPT];

static void *work(void *argument)
{
    long number = (long)argument;

    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE) && counts[number] < 10000) {
        for (int n = 0; n < 99; n++)
            free(malloc(40));
        kept[number][counts[number]] = malloc(48);
        __atomic_fetch_add(&counts[number], 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void await(int count)
{
    for (int n = 0; n < THREADS; n++)
        while (__atomic_load_n(&counts[n], __ATOMIC_ACQUIRE) < count)
            ;
}

int main(int argc, char **argv)
{
    int is_deep = argc > 2 && !strcmp(argv[1], "deep");
    pthread_t threads[THREADS];
    long blocks = 0, bytes = 0;
    void *library;

    wait_for_go();
    for (int n = 0; n < KEPT; n++)
        own[n] = malloc(24);
    for (long n = 0; n < THREADS; n++)
        threads[n] = begin_thread(work, (void *)n);
    await(5);
    library = is_deep ? dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND) :
                        dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
    if (!library) {
        puts(dlerror());
        return 3;
    }
    void *(*keep)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_allocate");
    void (*release)(void *) = (void (*)(void *))dlsym(library, "plugin_release");
    for (int n = 0; n < KEPT; n++)
        its[n] = keep(56);
    for (int n = 0; n < KEPT / 2; n++)
        release(is_deep ? own[n] : its[n]);
    for (int n = KEPT / 2; n < KEPT; n++)
        (is_deep ? free : release)(its[n]);
    await(20);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    for (int n = 0; n < THREADS; n++) {
        pthread_join(threads[n], NULL);
        blocks += counts[n];
        bytes += 48 * counts[n];
    }
    blocks += KEPT;
    bytes += is_deep ? KEPT / 2 * 24 + KEPT / 2 * 56 : KEPT * 24;
    tell("%ld %ld\n", blocks, bytes);
    wait_for_line();
    return 0;
}
