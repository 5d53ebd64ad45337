// Starts processes in every way, each of which loses a block of a size of its own. Arguments: the
// program's own path; or "leak" and a size; or what else to do (see main).
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>

#include "command.h"

extern char **environ;

// Overwrites what registers and the stack keep of pointers, on the way back.
NOINLINE static void lose_below(int depth, size_t size)
{
    volatile char room[4096];

    memset((void *)room, 1, sizeof(room));
    if (depth)
        lose_below(depth - 1, size);
    else
        *(void *volatile *)room = malloc(size);
    memset((void *)room, 2, sizeof(room));
}

static void lose(size_t size)
{
    lose_below(3, size);
}

static volatile int is_over;

static void *churn(void *unused)
{
    while (!is_over)
        free(malloc(3000));
    return unused;
}

static void fork_beside_threads(void)
{
    pthread_t threads[3];

    for (int n = 0; n < 3; n++)
        threads[n] = begin_thread(churn, NULL);
    for (int n = 0; n < 8; n++)
        if (!fork()) {
            lose(102);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    is_over = 1;
    for (int n = 0; n < 3; n++)
        pthread_join(threads[n], NULL);
}

static void start_all(char *self)
{
    char command[4096], *words[] = {self, "leak", "105", NULL}, *none[] = {NULL};
    char *last[] = {self, "leak", "106", NULL};
    pid_t child;

    lose(100);
    if (!fork()) {
        lose(101);
        exit(0);
    }
    wait(NULL);
    fork_beside_threads();
    snprintf(command, sizeof(command), "exec %s leak 103", self);
    if (system(command))
        abort();
    snprintf(command, sizeof(command), "exec %s leak 104", self);
    pclose(popen(command, "r"));
    posix_spawn(&child, self, NULL, NULL, words, environ);
    wait(NULL);
    if (!vfork()) {
        execve(self, last, none);
        _exit(1);
    }
    wait(NULL);
    if (!syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) {
        lose(107);
        _exit(0);
    }
    wait(NULL);
    child = fork();
    if (!child) {
        if (daemon(1, 1))
            abort();
        lose(108);
        exit(0);
    }
    wait(NULL);
}

int main(int count, char **words)
{
    char letter;

    (void)count;
    if (!strcmp(words[1], "leak")) {
        lose(atoi(words[2]));
    } else if (!strcmp(words[1], "kill")) {
        lose(100);
        kill(getpid(), SIGKILL);
    } else if (!strcmp(words[1], "leave")) {
        // A child outlives it.
        if (!fork()) {
            lose(109);
            closefrom(0);
            pause();
        }
    } else if (!strcmp(words[1], "wait")) {
        // Loses a block, then one for each byte of its input.
        do {
            lose(110);
            say("lost\n");
        } while (read(0, &letter, 1) == 1);
    } else {
        start_all(words[1]);
    }
    return 0;
}
