// Calls Go from C.
//
//   pumphost LIBRARY
//
// Says "ready"; at each line it hears it calls the library's Pump twenty times, which
// allocates 5000 bytes each time, and answers "done".
#include <dlfcn.h>

#include "command.h"

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void (*pump)(int, size_t) = library ? (void (*)(int, size_t))dlsym(library, "Pump") : NULL;

    if (!pump)
        return 1;
    say("ready\n");
    for (;;) {
        wait_for_line();
        for (int n = 0; n < 20; n++)
            pump(n % 5, 5000);
        say("done\n");
    }
}
