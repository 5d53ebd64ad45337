// Has blocks allocated by processes that share its memory (CLONE_VM), and frees them itself.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>

#include "command.h"

enum { ROUNDS = 100 };

static void *volatile result;

static int allocate(void *nothing)
{
    result = malloc(500);
    return nothing != NULL;
}

int main(void)
{
    static char stack[1 << 16];

    result = malloc(1);
    wait_for_go();
    for (int n = 0; n < ROUNDS; n++) {
        waitpid(clone(allocate, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL), NULL, __WALL);
        if (n % 10)
            free(result);
    }
    finish();
    return 0;
}
