// How long a cache line takes from one processor to another.
//
// Two threads, on the first two processors that it may use, hand a word to each other. Prints
// the nanoseconds of one way.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 20000 };

static _Alignas(128) atomic_int word;
static int processors[2];

static void pin(int processor)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void hand_on(int from, int to)
{
    while (atomic_load_explicit(&word, memory_order_acquire) != from)
        ;
    atomic_store_explicit(&word, to, memory_order_release);
}

static void *answer(void *unused)
{
    (void)unused;
    pin(processors[1]);
    for (int n = 0; n < ROUNDS; n++)
        hand_on(2 * n + 1, 2 * n + 2);
    return NULL;
}

int main(void)
{
    struct timespec begin, end;
    pthread_t other;
    cpu_set_t allowed;
    int found = 0;

    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int n = 0; n < CPU_SETSIZE && found < 2; n++)
        if (CPU_ISSET(n, &allowed))
            processors[found++] = n;
    if (found < 2 || pthread_create(&other, NULL, answer, NULL))
        return 2;
    pin(processors[0]);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int n = 0; n < ROUNDS; n++)
        hand_on(2 * n, 2 * n + 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    pthread_join(other, NULL);
    printf("%.1f\n",
           ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
               ROUNDS / 2);
    return 0;
}
