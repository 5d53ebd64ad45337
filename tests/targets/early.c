// Allocates before main: in the program's constructor, and in libraries' if it is compiled
// as such. Known numbers of blocks, by a function of their own each.
//
//   -DLIBRARY=needed -shared    a library whose constructor makes 7 blocks of 2,000 bytes
//   -DLIBRARY=preloaded -shared 7 blocks of 1,000 bytes
//   (neither)                   5 blocks of 3,000 bytes before main, 3 of 4,000 in it
//
//   early STATUS [WORD]   copies WORD and a line of input to its output, exits with STATUS;
//                         STATUS below 0: ends itself by that signal
#include <signal.h>

#include "command.h"

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)

static void *volatile kept;

#ifdef LIBRARY
#define needed_SIZE 2000
#define preloaded_SIZE 1000

NOINLINE static void NAMED(in_, LIBRARY)(void)
{
    for (int n = 0; n < 7; n++)
        kept = malloc(NAMED(LIBRARY, _SIZE));
}

__attribute__((constructor)) static void begin(void)
{
    NAMED(in_, LIBRARY)();
    __asm__ volatile("" ::: "memory");
}

// What a program needs of it, so that it is linked.
void NAMED(LIBRARY, _use)(void)
{
}
#else
NOINLINE static void in_constructor(void)
{
    for (int n = 0; n < 5; n++)
        kept = malloc(3000);
}

__attribute__((constructor)) static void begin(void)
{
    in_constructor();
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void in_main(void)
{
    for (int n = 0; n < 3; n++)
        kept = malloc(4000);
}

#ifdef NEEDED
void needed_use(void);
#endif

int main(int argc, char **argv)
{
    char line[64];
    int status = argc > 1 ? atoi(argv[1]) : 0;

#ifdef NEEDED
    needed_use();
#endif
    in_main();
    if (argc > 2) {
        say(argv[2]);
        say("\n");
        hear(line, sizeof(line));
        say(line);
        say("\n");
    }
    if (status < 0)
        raise(-status);
    return status;
}
#endif
