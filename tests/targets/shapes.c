// Allocations under every shape of stack that C makes without frame pointers.
//
//   shapes DEPTH
//
// Each shape allocates through the same leaf; DEPTH is that of the recursion.
#define _GNU_SOURCE
#include <alloca.h>
#include <signal.h>
#include <ucontext.h>

#include "command.h"

static void *volatile kept;
static volatile int turns = 3;

NOINLINE static void leaf(size_t size)
{
    kept = malloc(size);
    free(kept);
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void with_alloca(size_t size)
{
    char *memory = alloca(size);

    memory[0] = 1;
    leaf(size + (size_t)memory[0]);
}

NOINLINE static void realigned(size_t size)
{
    _Alignas(64) volatile char room[128];

    room[0] = (char)size;
    leaf(size + (size_t)room[0]);
}

NOINLINE static void realigned_alloca(size_t size)
{
    _Alignas(64) volatile char room[128];
    volatile char *memory = alloca(size);

    room[0] = memory[0] = (char)size;
    leaf(size + (size_t)room[0]);
}

NOINLINE static int compare(const void *one, const void *other)
{
    leaf(100);
    return *(const int *)one - *(const int *)other;
}

NOINLINE static void on_signal(int number)
{
    leaf((size_t)number * 10);
}

NOINLINE static void signalled(int on_stack)
{
    static char memory[65536];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof(memory)};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = on_stack ? SA_ONSTACK : 0};

    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
}

NOINLINE static long recurse(long left)
{
    long result = left > 1 ? recurse(left - 1) + 1 : 0;

    if (left <= 1)
        leaf(4000);
    __asm__ volatile("" ::: "memory");
    return result;
}

// A frame of 20 KiB: the stack goes on behind the copy of a small miss.
NOINLINE static void large_frame(size_t size)
{
    volatile char room[20480];

    room[0] = (char)size;
    leaf(size + (size_t)room[0]);
    room[1] = 0;
}

static void *in_thread(void *unused)
{
    (void)unused;
    for (int turn = 0; turn < turns; turn++)
        with_alloca(300);
    return NULL;
}

static ucontext_t main_context, other_context;

static void in_context(void)
{
    leaf(700);
    swapcontext(&other_context, &main_context);
    leaf(701);
}

NOINLINE static void coroutine(void)
{
    static char memory[65536];

    getcontext(&other_context);
    other_context.uc_stack.ss_sp = memory;
    other_context.uc_stack.ss_size = sizeof(memory);
    other_context.uc_link = &main_context;
    makecontext(&other_context, in_context, 0);
    swapcontext(&main_context, &other_context);
    swapcontext(&main_context, &other_context);
}

NOINLINE static void tail_called(size_t size);

NOINLINE static void calls_at_its_end(size_t size)
{
    kept = NULL;
    tail_called(size * 2);
}

NOINLINE static void tail_called(size_t size)
{
    leaf(size);
}

int main(int argc, char **argv)
{
    int numbers[16];
    pthread_t thread;

    for (int turn = 0; turn < turns; turn++) {
        with_alloca(500);
        realigned(40);
        realigned_alloca(64);
        for (int n = 0; n < 16; n++)
            numbers[n] = n * 7 % 16;
        qsort(numbers, 16, sizeof(int), compare);
        signalled(0);
        signalled(1);
        recurse(argc > 1 ? atol(argv[1]) : 50);
        large_frame(9);
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
        coroutine();
        calls_at_its_end(90);
    }
    return 0;
}
