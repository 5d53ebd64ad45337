// One allocation per known call chain, made after the word to go on.
//
//   chain [DEPTH...]    DEPTH levels of recursion (default 5) above one of 4096, 4160, ... bytes
#include "command.h"

static void *volatile kept[16];

NOINLINE static void innermost(int at, size_t size)
{
    kept[at] = malloc(size);
}

NOINLINE static void middle(int at, size_t size)
{
    innermost(at, size);
    kept[15] = NULL;
}

NOINLINE static void outermost(int at, size_t size)
{
    middle(at, size);
    kept[15] = NULL;
}

NOINLINE static void recurse(int depth, int number)
{
    if (depth > 1)
        recurse(depth - 1, number);
    else
        kept[4 + number] = calloc(64, 64 + (size_t)number);
    kept[15] = NULL;
}

static pthread_barrier_t barrier;

static void *in_thread(void *argument)
{
    pthread_barrier_wait(&barrier);
    outermost(3, 333);
    pthread_barrier_wait(&barrier);
    for (;;)
        pause(); // a thread that ends frees what its creation allocated
    return argument;
}

int main(int argc, char **argv)
{
    pthread_barrier_init(&barrier, NULL, 2);
    begin_thread(in_thread, NULL);
    wait_for_go();
    outermost(0, 1111);
    middle(1, 2222);
    for (int n = 1; n == 1 || n < argc; n++)
        recurse(argc > 1 ? atoi(argv[n]) : 5, n - 1);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    finish();
    return 0;
}
