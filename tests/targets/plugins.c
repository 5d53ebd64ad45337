// Threads that open and close a library beside each other, each time with a block in between and
// one behind it that are kept.
//
//   plugins LIBRARY THREADS ROUNDS
//
// Answers "done" when all of them are through.
#include <dlfcn.h>

#include "command.h"

#define MOST_THREADS 16

static const char *path;
static int rounds;

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

int main(int argc, char **argv)
{
    pthread_t threads[MOST_THREADS];
    int count;

    if (argc < 4 || (count = atoi(argv[2])) > MOST_THREADS)
        return 2;
    path = argv[1];
    rounds = atoi(argv[3]);
    for (int n = 0; n < count; n++)
        if (pthread_create(&threads[n], NULL, run, NULL))
            return 4;
    for (int n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
    finish();
    return 0;
}
