// Loads one library after the other, and allocates through each at once, again and again.
//
//   bursts COUNT LIBRARY...    COUNT blocks of 4321 bytes through each, which all stay
#include <dlfcn.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 0;

    for (int n = 2; n < argc; n++) {
        void *library = dlopen(argv[n], RTLD_NOW);
        void *(*allocate)(size_t);

        if (!library)
            return 2;
        allocate = (void *(*)(size_t))dlsym(library, "plugin_allocate");
        for (long i = 0; i < count; i++) {
            void *block = allocate(4321);

            __asm__ volatile("" : "+r"(block));
        }
    }
    return 0;
}
