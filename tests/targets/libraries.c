// Opens libraries (plugin.c), and allocates through them.
//
//   libraries burst COUNT LIBRARY...         COUNT blocks through each, which stay, as does each library
//   libraries once LIBRARY                   opens it and keeps a block when told to, then closes it
//   libraries again ROUNDS SECONDS LIBRARY   opens and closes it again and again, says how many times
//   libraries beside ROUNDS THREADS LIBRARY  threads that do so beside each other, each time with a
//                                            block in between and one behind it that are kept
//   libraries told ROUNDS THREADS LIBRARY    the same, when told to
//   libraries turns ROUNDS stay LIBRARY...   opens one after the other, leaks a block through it and
//                                            closes it, again and again; move: each time elsewhere;
//                                            copies: each time a copy, whose name is gone at once
//   libraries silent ROUNDS HOW LIBRARY...   the same, at once and without a word
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>

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
        threads[n] = begin_thread(run, NULL);
    for (int n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
    finish();
}

static void copy_to(const char *name, const char *original)
{
    int from = open(original, O_RDONLY), to = open(name, O_RDWR | O_CREAT | O_TRUNC, 0700);

    while (copy_file_range(from, NULL, to, NULL, 1 << 20, 0) > 0)
        ;
    close(from);
    close(to);
}

static void take_turns(const char *how, int count, char **libraries)
{
    char copy[64];

    for (int n = 0; n < rounds; n++) {
        const char *library = libraries[n % count];
        void *opened;

        snprintf(copy, sizeof(copy), "/tmp/libraries-%d-%d.so", getpid(), n);
        if (!strcmp(how, "copies"))
            copy_to(copy, library);
        opened = dlopen(strcmp(how, "copies") ? library : copy, RTLD_NOW | RTLD_LOCAL);
        unlink(copy);
        use(allocator_of(opened));
        if (dlclose(opened))
            _exit(3);
        if (!strcmp(how, "move"))
            mmap(NULL, (n % 7 + 1) << 14, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    scrub();
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
    else if (!strcmp(argv[1], "silent"))
        take_turns(argv[3], argc - 4, argv + 4);
    else if (!strcmp(argv[1], "turns")) {
        wait_for_go();
        take_turns(argv[3], argc - 4, argv + 4);
        finish();
    } else {
        if (!strcmp(argv[1], "told"))
            wait_for_go();
        beside(atoi(argv[3]));
    }
    return 0;
}
