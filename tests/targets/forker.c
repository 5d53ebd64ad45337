// Forks, by several ways; the children allocate too, and end.
//
//   forker TIMES
//   forker share    has 100 blocks allocated by processes that share its memory (CLONE_VM), and frees
//                   90 of them itself
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include "command.h"

NOINLINE static void allocate(size_t size)
{
    void *volatile block = malloc(size);

    (void)block;
}

static void be_child(void)
{
    for (int n = 0; n < 20; n++) {
        allocate(70000);
        free(realloc(calloc(3, 5), 77));
    }
    _exit(0);
}

static void *volatile result;

static int allocate_for_parent(void *nothing)
{
    result = malloc(500);
    return nothing != NULL;
}

static void share(void)
{
    static char stack[1 << 16];

    result = malloc(1);
    wait_for_go();
    for (int n = 0; n < 100; n++) {
        int flags = CLONE_VM | SIGCHLD;

        waitpid(clone(allocate_for_parent, stack + sizeof stack, flags, NULL), NULL, __WALL);
        if (n % 10)
            free(result);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!strcmp(argv[1], "share"))
        share();
    else
        wait_for_go();
    for (long n = 0; n < atol(argv[1]); n++) {
        pid_t child = fork();

        if (!child)
            be_child();
        wait_for(child);
        allocate(100);
        child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
        if (!child)
            be_child();
        wait_for(child);
        child = vfork();
        if (!child)
            _exit(0);
        wait_for(child);
    }
    finish();
    return 0;
}
