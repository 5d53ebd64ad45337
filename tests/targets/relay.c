// Known numbers of temporary blocks, of blocks that one thread allocates and another one
// frees, and a known peak. All of it happens after the word to go on.
#define _GNU_SOURCE

#include "command.h"

#define GIVEN 300
#define CREST 50
#define KEPT 10

static void *volatile given[GIVEN];
static void *volatile crest[CREST];
static void *volatile kept[KEPT];
static pthread_barrier_t barrier;

NOINLINE static void give(void)
{
    for (int i = 0; i < GIVEN; i++)
        given[i] = malloc(1000);
}

NOINLINE static void scratch(void)
{
    for (int i = 0; i < 5000; i++) {
        void *volatile block = malloc(64);

        free(block);
    }
}

// One other allocation comes between the outer block and its end, none in the inner one's.
NOINLINE static void nest(void)
{
    for (int i = 0; i < 200; i++) {
        void *volatile outer = malloc(32);
        void *volatile inner = malloc(48);

        free(inner);
        free(outer);
    }
}

NOINLINE static void rise(void)
{
    for (int i = 0; i < CREST; i++)
        crest[i] = malloc(100000);
}

NOINLINE static void keep(void)
{
    for (int i = 0; i < KEPT; i++)
        kept[i] = malloc(7000);
}

static void *reader(void *nothing)
{
    pthread_setname_np(pthread_self(), "reader");
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < GIVEN; i++)
        free(given[i]);
    scratch();
    pthread_barrier_wait(&barrier);
    for (;;)
        pause(); // a thread that ends frees what its creation allocated
    return nothing;
}

int main(void)
{
    pthread_barrier_init(&barrier, NULL, 2);
    begin_thread(reader, NULL);
    pthread_barrier_wait(&barrier);
    wait_for_go();
    give();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    nest();
    rise();
    keep();
    for (int i = 0; i < CREST; i++)
        free(crest[i]);
    finish();
    return 0;
}
