// Allocates by all ways that lead to malloc, with addresses that it has had since its start.
//
//   pointers PLUGIN
//
// Says "ready". For each line it hears, a number, it makes and keeps so many blocks by each way, frees
// as many others, runs a forked child that allocates as well, and answers "done", or what is wrong.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>

#include "command.h"

struct functions {
    void *(*allocate)(size_t);
    void (*release)(void *);
};

static const struct functions of_the_file = {malloc, free};
static struct functions *on_the_heap;
static void *(*from_the_plugin)(size_t);
static volatile long handled;

static void *volatile kept;

NOINLINE static void by_call(void)
{
    free(malloc(10));
    kept = malloc(100);
}

NOINLINE static void by_table(void)
{
    of_the_file.release(of_the_file.allocate(20));
    kept = of_the_file.allocate(200);
}

NOINLINE static void by_heap(void)
{
    on_the_heap->release(on_the_heap->allocate(30));
    kept = on_the_heap->allocate(300);
}

NOINLINE static void by_lookup(void)
{
    void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");

    kept = allocate(400);
}

NOINLINE static void by_plugin(void)
{
    kept = from_the_plugin(500);
}

// A loop that has the function's address in a register for as long as the program runs.
NOINLINE static void *by_register(void *pipes)
{
    void *(*volatile source)(size_t) = malloc;
    void *(*allocate)(size_t) = source;
    const int *ends = pipes;
    long n;

    while (read(ends[0], &n, sizeof(n)) == sizeof(n)) {
        for (; n; n--) {
#ifdef __aarch64__
            register void *block __asm__("x0") = (void *)600;

            __asm__ volatile("blr %1"
                             : "+r"(block) : "r"(allocate)
                             : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11",
                               "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x30", "memory", "cc");
#else
            size_t size = 600;
            void *block;

            __asm__ volatile("call *%2"
                             : "=a"(block), "+D"(size)
                             : "r"(allocate)
                             : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
#endif
            kept = block;
        }
        if (write(ends[3], &n, sizeof(n)) != sizeof(n))
            break;
    }
    return NULL;
}

// Runs many times a second, on a stack of its own.
static void handle(int number)
{
    (void)number;
    handled++;
}

static const char *fork_one(void)
{
    int status;
    pid_t child = fork();

    if (!child) {
        for (int n = 0; n < 100; n++)
            free(strdup("in the child"));
        _exit(7);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return "no child";
    return WIFEXITED(status) && WEXITSTATUS(status) == 7 ? NULL : "the child has died";
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct itimerspec often = {{0, 3000000}, {0, 3000000}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    stack_t other = {.ss_size = 1 << 16}, now;
    void *library;
    timer_t timer;
    int pipes[4];
    char line[64];

    if (argc < 2 || pipe(pipes) || pipe(pipes + 2))
        return 2;
    on_the_heap = malloc(sizeof(*on_the_heap));
    *on_the_heap = of_the_file;
    other.ss_sp = malloc(other.ss_size);
    sigaltstack(&other, NULL);
    sigaction(SIGRTMIN, &action, NULL);
    begin_thread(by_register, pipes);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &often, NULL);
    say("ready\n");
    for (;;) {
        const char *trouble = NULL;
        long count;

        hear(line, sizeof(line));
        count = atol(line);
        library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
        from_the_plugin = library ? (void *(*)(size_t))dlsym(library, "plugin_allocate") : NULL;
        if (!from_the_plugin)
            return 3;
        for (long n = 0; n < count; n++) {
            by_call();
            by_table();
            by_heap();
            by_lookup();
            by_plugin();
        }
        if (write(pipes[1], &count, sizeof(count)) < 0 || read(pipes[2], &count, sizeof(count)) < 0)
            return 4;
        trouble = fork_one();
        sigaltstack(NULL, &now);
        if (now.ss_sp != other.ss_sp || now.ss_flags)
            trouble = "the alternate stack has changed";
        say(trouble ? trouble : "done");
        say("\n");
    }
}
