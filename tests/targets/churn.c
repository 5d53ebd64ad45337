// Starts and ends many threads.
//
//   churn THREADS    so many for each line that it hears, each of which leaves a block of 24 bytes behind
//   churn unjoined   joins none of them: asked "start N", N more
#include <semaphore.h>

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

static sem_t ended;

static void *end(void *argument)
{
    sem_post(&ended);
    return argument;
}

int main(int argc, char **argv)
{
    char line[64];

    (void)argc;
    sem_init(&ended, 0, 0);
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        for (long left = atol(argv[1]); left > 0; left--)
            pthread_join(begin_thread(work, NULL), NULL);
        for (long left = strncmp(line, "start ", 6) ? 0 : atol(line + 6); left > 0; left--) {
            begin_thread(end, NULL);
            sem_wait(&ended);
        }
        say("done\n");
    }
}
