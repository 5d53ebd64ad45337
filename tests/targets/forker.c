// Forks, by several ways; the children allocate too, and end.
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "command.h"

__attribute__((noinline)) static void allocate(size_t size)
{
    void *volatile block = malloc(size);

    (void)block;
    __asm__ volatile("" ::: "memory");
}

static void wait_for(pid_t child)
{
    int status;

    if (waitpid(child, &status, 0) != child || status)
        _exit(4);
}

int main(void)
{
    char line[64];

    wait_for_go();
    for (int n = 0; n < 20; n++) {
        pid_t child = fork();

        if (!child) {
            for (int m = 0; m < 100; m++)
                allocate(70000);
            _exit(0);
        }
        wait_for(child);
        allocate(100);
        child = vfork();
        if (!child)
            _exit(0);
        wait_for(child);
    }
    say("done\n");
    hear(line, sizeof(line));
    return 0;
}
