// Calls Go from C.
//
//   pumphost LIBRARY
//
// Says "ready"; at each line it hears it calls the library's Pump twenty times, which
// allocates 5000 bytes each time, and answers "done".
#include <dlfcn.h>
#include <stddef.h>

#include "command.h"

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void (*pump)(int, size_t) = library ? (void (*)(int, size_t))dlsym(library, "Pump") : NULL;
    char line[64];

    if (!pump)
        return 1;
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        for (int n = 0; n < 20; n++)
            pump(n % 5, 5000);
        say("done\n");
    }
}
