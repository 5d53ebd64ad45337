// Programs and processes that come out of one another, each with books of its own.
//
//   lineage [GENERATION]
//
// Commands, one per line:
//
//   alloc N SIZE    N blocks more; answers with the books: blocks and bytes that are held
//   free N          frees the N oldest
//   exec            begins this program again: says "ready", holds nothing
//   texec           the same from a second thread
//   become PATH     begins another program
//   spawn           runs /bin/true three times: fork, vfork, posix_spawn
//   tree N THREADS  N descendants, each the child or the grandchild of another, in turn; each
//                   has THREADS threads that allocate before it forks. Answers, once all
//                   have ended, with a line of JSON: [[pid, parent, blocks, bytes], …]
//   stop            stops itself with SIGSTOP; answers when it is continued
//
// The books are kept outside the heap.
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>

#include "command.h"

#define MOST_BLOCKS 65536
#define MOST_PROCESSES 256

static struct held {
    void *block;
    size_t size;
} held[MOST_BLOCKS];
static long first, last, held_bytes;

static struct shared {
    long processes;
    struct {
        long pid, parent, blocks, bytes;
    } of[MOST_PROCESSES];
} *shared;

static char generation[16] = "0";

NOINLINE static void keep(size_t size)
{
    long at = __atomic_fetch_add(&last, 1, __ATOMIC_RELAXED);

    held[at].block = malloc(size);
    held[at].size = size;
    __atomic_fetch_add(&held_bytes, (long)size, __ATOMIC_RELAXED);
    __asm__ volatile("" ::: "memory");
}

static void drop(void)
{
    free(held[first].block);
    held_bytes -= (long)held[first++].size;
}

static void say_books(void)
{
    tell("[%ld, %ld]\n", last - first, held_bytes);
}

static void *begin_again(void *nothing)
{
    char next[16];
    char *arguments[] = {"lineage", next, NULL};

    (void)nothing;
    snprintf(next, sizeof(next), "%d", atoi(generation) + 1);
    execv("/proc/self/exe", arguments);
    _exit(9);
}

static void spawn(void)
{
    char *arguments[] = {"/bin/true", NULL};
    char *no_environment[] = {NULL};
    pid_t child = fork();

    if (!child) {
        execv(arguments[0], arguments);
        _exit(9);
    }
    wait_for(child);
    child = vfork();
    if (!child) {
        execve(arguments[0], arguments, no_environment);
        _exit(9);
    }
    wait_for(child);
    if (posix_spawn(&child, arguments[0], NULL, NULL, arguments, no_environment))
        _exit(9);
    wait_for(child);
}

static void *allocate_aside(void *number)
{
    for (int n = 0; n < 50; n++) {
        keep(10 + (size_t)(uintptr_t)number);
        free(malloc(3000));
    }
    return NULL;
}

// One process of the tree; `left` are to come out of it.
static void grow(long left, long threads)
{
    long at = __atomic_fetch_add(&shared->processes, 1, __ATOMIC_RELAXED);
    pthread_t helpers[16];
    pid_t child;

    for (long n = 0; n < at % 7 + 1; n++)
        keep(100 + (size_t)at);
    if (first < last)
        drop();
    for (long n = 0; n < threads; n++)
        helpers[n] = begin_thread(allocate_aside, (void *)(uintptr_t)n);
    for (long n = 0; n < threads; n++)
        pthread_join(helpers[n], NULL);
    while (left > 0) {
        // The first child gets half of what is left, so that the tree has some depth.
        long share = (left - 1) / 2;

        child = fork();
        if (!child) {
            grow(share, threads);
            _exit(0);
        }
        wait_for(child);
        left -= 1 + share;
        keep(7);
    }
    shared->of[at].pid = getpid();
    shared->of[at].parent = getppid();
    shared->of[at].blocks = last - first;
    shared->of[at].bytes = held_bytes;
}

static void say_tree(void)
{
    for (long n = 0; n < shared->processes; n++)
        tell("%s[%ld, %ld, %ld, %ld]", n ? ", " : "[", shared->of[n].pid, shared->of[n].parent,
             shared->of[n].blocks, shared->of[n].bytes);
    say("]\n");
}

int main(int argc, char **argv)
{
    char line[256];
    long n, size;

    if (argc > 1)
        snprintf(generation, sizeof(generation), "%s", argv[1]);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        if (sscanf(line, "alloc %ld %ld", &n, &size) == 2) {
            while (n--)
                keep((size_t)size);
        } else if (sscanf(line, "free %ld", &n) == 1) {
            while (n--)
                drop();
        } else if (!strcmp(line, "exec")) {
            begin_again(NULL);
        } else if (!strcmp(line, "texec")) {
            pthread_join(begin_thread(begin_again, NULL), NULL);
        } else if (!strncmp(line, "become ", 7)) {
            execl(line + 7, line + 7, (char *)NULL);
            return 9;
        } else if (!strcmp(line, "spawn")) {
            spawn();
        } else if (sscanf(line, "tree %ld %ld", &n, &size) == 2) {
            grow(n, size);
            say_tree();
            continue;
        } else if (!strcmp(line, "stop")) {
            raise(SIGSTOP);
        }
        say_books();
    }
}
