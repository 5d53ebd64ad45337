// Opens libraries (plugin.c), and allocates through them.
//
//   libraries burst COUNT LIBRARY...         COUNT blocks through each, which stay, as does each library
//   libraries once LIBRARY                   opens it and keeps a block when told to, then closes it
//   libraries again ROUNDS SECONDS LIBRARY   opens and closes it again and again, says how many times
//   libraries beside ROUNDS THREADS LIBRARY  threads that do so beside each other, each time with a
//                                            block in between and one behind it that are kept
//   libraries told ROUNDS THREADS LIBRARY    the same, when told to
#include <dlfcn.h>
#include <time.h>

#include "command.h"

enum { MOST_THREADS = 16 };

typedef void *allocator(size_t size);

static const char *path;
static int rounds;

static allocator *allocator_of(void *library)
{
    if (!library)
        _exit(3);
    return (allocator *)dlsym(library, "plugin_allocate");
}

NOINLINE static void *use(allocator *allocate)
{
    void *block = allocate(4321);

    __asm__ volatile("" : "+r"(block));
    return block;
}

static void burst(long count, allocator *allocate)
{
    while (count--)
        use(allocate);
}

static void once(void)
{
    void *library;

    wait_for_go();
    library = dlopen(path, RTLD_NOW);
    use(allocator_of(library));
    finish();
    dlclose(library);
    say("closed\n");
    wait_for_line();
}

static void again(int seconds)
{
    time_t end = time(NULL) + seconds;
    int n;

    for (n = 0; n < rounds && time(NULL) < end; n++) {
        void *library = dlopen(path, RTLD_NOW);

        free(allocator_of(library)(1234));
        dlclose(library);
    }
    printf("%d\n", n);
}

NOINLINE static void keep(size_t size)
{
    void *volatile block = malloc(size);

    (void)block;
}

static void *run(void *nothing)
{
    for (int n = 0; n < rounds; n++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

        keep(100);
        if (!library || dlclose(library))
            _exit(3);
        keep(200);
    }
    return nothing;
}

static void beside(int count)
{
    pthread_t threads[MOST_THREADS];

    for (int n = 0; n < count; n++)
        pthread_create(&threads[n], NULL, run, NULL);
    for (int n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
    finish();
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 0;
    path = argv[argc - 1];
    rounds = atoi(argv[2]);
    if (!strcmp(argv[1], "burst"))
        for (int n = 3; n < argc; n++)
            burst(rounds, allocator_of(dlopen(argv[n], RTLD_NOW)));
    else if (!strcmp(argv[1], "once"))
        once();
    else if (!strcmp(argv[1], "again"))
        again(atoi(argv[3]));
    else {
        if (!strcmp(argv[1], "told"))
            wait_for_go();
        beside(atoi(argv[3]));
    }
    return 0;
}
