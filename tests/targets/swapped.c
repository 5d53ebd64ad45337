// The same address, another function: loads and unloads libraries in turn.
//
//   swapped TURNS LIBRARY...
//
// Compiled with -DROOM=BYTES it is such a library: a function with a frame of that size,
// which allocates through a call back. After the first calls of each it writes a line, and
// waits for one.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef ROOM
void use(void (*allocate)(void))
{
    volatile char room[ROOM];

    room[0] = 1;
    allocate();
    room[ROOM - 1] = room[0];
}
#else
static void *volatile kept;

__attribute__((noinline)) static void allocate(void)
{
    kept = malloc(100);
    free(kept);
    __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
    for (long turn = 0; turn < atol(argv[1]); turn++) {
        for (int n = 2; n < argc; n++) {
            void *library = dlopen(argv[n], RTLD_NOW);
            void (*use)(void (*)(void)) = (void (*)(void (*)(void)))dlsym(library, "use");

            if (!use)
                return 1;
            for (int call = 0; call < 1500; call++) {
                if (call == 20) {
                    puts("");
                    fflush(stdout);
                    getchar();
                }
                use(allocate);
            }
            dlclose(library);
        }
    }
    return 0;
}
#endif
