// Opens a library, allocates through it, and closes it, again and again.
//
//   reopener LIBRARY ROUNDS
#include <dlfcn.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 0;

    for (int n = 0; n < rounds; n++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        void *(*allocate)(size_t);

        if (!library)
            return 3;
        allocate = (void *(*)(size_t))dlsym(library, "plugin_allocate");
        free(allocate(1234));
        dlclose(library);
    }
    return 0;
}
