// Says how many bytes of its stack calls take.
//
//   stackneed
//
// Says "ready". At a line it hears, a new thread calls malloc, calloc, realloc and free, twice each,
// and the answer is the most bytes that one of them has written to below its caller.
#include "command.h"

#define PAINTED 16384
#define PAINT 0xA5

static void *volatile block;

static void by_malloc(void) { block = malloc(100); }
static void by_calloc(void) { block = calloc(10, 10); }
static void by_realloc(void) { block = realloc(block, 3000); }
static void by_free(void) { free(block); }

NOINLINE static void paint(void)
{
    volatile unsigned char room[PAINTED];

    for (int n = 0; n < PAINTED; n++)
        room[n] = PAINT;
    (void)room[0];
}

NOINLINE static long depth_of(void (*function)(void))
{
    const volatile unsigned char *here = __builtin_frame_address(0), *low = here - PAINTED;

    paint();
    function();
    while (low < here && *low == PAINT)
        low++;
    return here - low;
}

static void *work(void *result)
{
    void (*const functions[])(void) = {by_malloc, by_realloc, by_free, by_calloc, by_free};
    long *most = result;

    for (int n = 0; n < 10; n++) {
        long depth = depth_of(functions[n % 5]);

        if (depth > *most)
            *most = depth;
    }
    return NULL;
}

int main(void)
{
    free(malloc(1));
    say("ready\n");
    for (;;) {
        long most = 0;

        wait_for_line();
        pthread_join(begin_thread(work, &most), NULL);
        tell("%ld\n", most);
    }
}
