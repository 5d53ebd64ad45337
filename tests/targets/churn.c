// Starts and ends many threads, each of which leaves one block of 24 bytes behind.
//
//   churn THREADS      the number of threads per line that it hears
#include "command.h"

static void *volatile kept;

__attribute__((noinline)) static void leave_one(void)
{
    kept = malloc(24);
    __asm__ volatile("" ::: "memory");
}

static void *work(void *argument)
{
    leave_one();
    return argument;
}

int main(int argc, char **argv)
{
    (void)argc;
    say("ready\n");
    for (;;) {
        wait_for_line();
        for (long left = atol(argv[1]); left > 0; left--)
            pthread_join(begin_thread(work, NULL), NULL);
        say("done\n");
    }
}
