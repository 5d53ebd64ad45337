// Allocates a block of 4000 bytes and ends; built with sanitizers.
//
//   sanitized [leak|wait]    leaks it; frees it only when there is a line on standard input
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *volatile kept;

int main(int argc, char **argv)
{
    char line[64];

    kept = malloc(4000);
    memset(kept, 1, 4000);
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        puts("ready");
        fflush(stdout);
        if (!fgets(line, sizeof(line), stdin))
            return 2;
    }
    if (argc > 1 && !strcmp(argv[1], "leak"))
        kept = NULL;
    return 0;
}
