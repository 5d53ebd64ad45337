// Loads the library named by its argument when told to, allocates through it, unloads it.
#include <dlfcn.h>

#include "command.h"

__attribute__((noinline)) static void *use(void *library)
{
    void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_allocate");
    void *block = allocate(4321);

    __asm__ volatile("" : "+r"(block));
    return block;
}

int main(int argc, char **argv)
{
    void *library;

    if (argc < 2)
        return 2;
    wait_for_go();
    library = dlopen(argv[1], RTLD_NOW);
    if (!library)
        return 3;
    use(library);
    finish();
    dlclose(library);
    say("closed\n");
    wait_for_line();
    return 0;
}
