// Locks all of its memory, mlockall(2).
//
//   locker
//
// Says "ready". At a line it hears, it keeps 100 blocks of 1000 bytes, locks its memory, keeps 100
// more, and answers with how much is locked then, in KiB.
#include "command.h"

static void *volatile kept[200];

int main(void)
{
    static char text[200], line[16];
    long locked = -1;
    FILE *status;

    say("ready\n");
    hear(line, sizeof(line));
    for (int n = 0; n < 100; n++)
        kept[n] = malloc(1000);
    if (mlockall(MCL_CURRENT | MCL_FUTURE))
        return 3;
    for (int n = 100; n < 200; n++)
        kept[n] = malloc(1000);
    status = fopen("/proc/self/status", "r");
    while (status && fgets(text, sizeof(text), status) && sscanf(text, "VmLck: %ld", &locked) < 1)
        ;
    tell("%ld\n", locked);
    hear(line, sizeof(line));
}
