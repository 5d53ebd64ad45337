// Opens a library, allocates through it, and closes it, again and again.
//
//   reopener LIBRARY ROUNDS SECONDS
//
// Ends early after so many seconds. Says how many rounds there were.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 0, seconds = argc > 3 ? atoi(argv[3]) : 0, n;
    struct timespec begun, now;

    clock_gettime(CLOCK_MONOTONIC, &begun);
    now = begun;
    for (n = 0; n < rounds && now.tv_sec - begun.tv_sec < seconds; n++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        void *(*allocate)(size_t);

        if (!library)
            return 3;
        allocate = (void *(*)(size_t))dlsym(library, "plugin_allocate");
        free(allocate(1234));
        dlclose(library);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
    printf("%d\n", n);
    return 0;
}
