// Forks in signal handlers that interrupt whatever it is at: allocating, most of the time. The
// children go on where that was.
//
//   forkstorm TIMES
//
// At a line it hears, it keeps blocks of 40 bytes and frees as many of 72 until it was interrupted
// so many times, by turns with fork(2) and _Fork(3). Answers with the number of blocks it keeps and
// the number of children that did not end as they should.
#define _GNU_SOURCE
#include <signal.h>
#include <sys/time.h>

#include "command.h"

static volatile sig_atomic_t is_child, forks, bad;
static long times;

static void interrupt(int number)
{
    struct itimerval soon = {.it_value = {.tv_usec = 150 + forks * 7 % 200}};
    pid_t child;
    int status;

    (void)number;
    child = forks % 2 ? fork() : _Fork();
    if (!child) {
        is_child = 1;
        return;
    }
    if (waitpid(child, &status, 0) != child || status != 7 << 8)
        bad++;
    if (++forks < times)
        setitimer(ITIMER_REAL, &soon, NULL);
}

__attribute__((noinline)) static void keep(void)
{
    void *volatile kept = malloc(40);

    (void)kept;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = interrupt};
    long kept = 0;

    if (argc < 2)
        return 2;
    times = atol(argv[1]);
    sigaction(SIGALRM, &action, NULL);
    wait_for_go();
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 100}}, NULL);
    while (forks < times) {
        if (is_child) {
            for (int n = 0; n < 100; n++)
                free(realloc(malloc(33), 100));
            _exit(7);
        }
        if (kept < 1000) {
            keep();
            kept++;
        }
        for (int n = 0; n < 20; n++)
            free(malloc(72));
    }
    tell("%ld %d\n", kept, (int)bad);
    wait_for_line();
    return 0;
}
