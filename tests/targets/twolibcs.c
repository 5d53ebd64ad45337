// Has a second C library, in a namespace of its own (dlmopen(3)).
//
// Says "ready"; at a line it hears, keeps 10 blocks of 40 bytes of its own and 20 of 50 of the
// other one's, and frees as many of each. Answers "done".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "command.h"

static void *volatile kept;

static void keep(int count, size_t size, void *(*allocate)(size_t), void (*release)(void *))
{
    for (int n = 0; n < count; n++) {
        release(allocate(size));
        kept = allocate(size);
    }
}

int main(void)
{
    void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    char line[64];

    if (!library)
        return 3;
    wait_for_go();
    keep(10, 40, malloc, free);
    keep(20, 50, (void *(*)(size_t))dlsym(library, "malloc"),
         (void (*)(void *))dlsym(library, "free"));
    say("done\n");
    hear(line, sizeof(line));
    return 0;
}
