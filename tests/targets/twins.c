// Call stacks that are hard to tell apart: those that have allocated have the same stack
// pointer, the same innermost frames, and the same registers, or nearly so.
//
// On "go" each of one(), two(), left() and right() leaves 500 blocks of 16 bytes behind, by
// turns, and in the order of a sequence that does not repeat soon.
#include "command.h"

#define UNITS 8
#define UNIT_BYTES 64

static void *volatile kept;

NOINLINE static void leaf(void)
{
    kept = malloc(16);
    __asm__ volatile("" ::: "memory");
}

// Its frame is found by the frame pointer, since its size isn't known beforehand.
NOINLINE static void padded(size_t units)
{
    volatile char room[units * UNIT_BYTES];

    room[0] = 1;
    leaf();
    room[0] = 2;
}

NOINLINE static void split(size_t units)
{
    volatile char room[units * UNIT_BYTES];

    room[0] = 1;
    padded(UNITS - units);
    room[0] = 2;
}

NOINLINE static void one(void)
{
    padded(4);
    __asm__ volatile("");
}

NOINLINE static void two(void)
{
    padded(4);
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void left(void)
{
    split(2);
    __asm__ volatile("");
}

NOINLINE static void right(void)
{
    split(5);
    __asm__ volatile("" ::: "memory");
}

int main(void)
{
    static void (*const ways[])(void) = {one, two, left, right};
    long turns[4] = {500, 500, 500, 500};
    uint32_t random = 1;

    wait_for_go();
    for (long left_over = 2000; left_over;) {
        uint32_t way;

        random = random * 1664525 + 1013904223;
        way = random >> 30;
        if (!turns[way])
            continue;
        turns[way]--;
        left_over--;
        ways[way]();
    }
    say("done\n");
    wait_for_go();
    return 0;
}
