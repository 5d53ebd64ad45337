// Many threads, each allocating through chains of calls that its block sizes spell out.
//
//   crowd THREADS ROUNDS
//
// A chain is a number below 3^DEPTH; its digits say which of digit_0, digit_1, digit_2
// calls which. A block made at the end of chain n has 1000 + n bytes. Whoever sees a
// block of that size with any other stack has mixed two threads up.
#include "command.h"

enum { DEPTH = 6, CHAINS = 729 };

static long rounds;

struct walk {
    int chain;
    int digits;
    int left;
};

typedef void step(struct walk *);
static step digit_0, digit_1, digit_2;
static step *const steps[] = {digit_0, digit_1, digit_2};

NOINLINE static void descend(struct walk *walk)
{
    if (walk->left == 0) {
        char *block = malloc(1000 + (size_t)walk->chain);

        block[0] = 1;
        if (walk->chain % 4)
            free(block);
    } else {
        int digit = walk->digits % 3;

        walk->digits /= 3;
        walk->left--;
        steps[digit](walk);
    }
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void digit_0(struct walk *walk) { descend(walk); __asm__ volatile("nop"); }
NOINLINE static void digit_1(struct walk *walk) { descend(walk); __asm__ volatile("nop;nop"); }
NOINLINE static void digit_2(struct walk *walk) { descend(walk); __asm__ volatile("nop;nop;nop"); }

static void wander(long number)
{
    unsigned dice = (unsigned)number * 2654435761u + 1;

    for (long n = 0; n < rounds; n++) {
        struct walk walk;

        dice = dice * 1664525u + 1013904223u;
        walk.chain = walk.digits = (int)((dice >> 8) % CHAINS);
        walk.left = DEPTH;
        descend(&walk);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    rounds = atol(argv[2]);
    begin_gang(atol(argv[1]), wander);
    wait_for_go();
    take_turn();
    finish();
    return 0;
}
