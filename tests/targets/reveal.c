// Blocks whose addresses are hidden until somebody asks: reveal
//
// Makes 50 blocks of 3,000 bytes, each of which leads to one of 4,000 bytes, and holds their addresses
// inverted. Says "ready". For the first line it frees them all, for the second it makes such blocks
// again, and for the third it stores their addresses in a block that it holds. Ends with its input.
#include "command.h"

enum { COUNT = 50 };

static uintptr_t hidden[COUNT];
static void *volatile *shelf;

__attribute__((noinline)) static void hide(void)
{
    for (int number = 0; number < COUNT; number++) {
        void **first = calloc(1, 3000);

        *first = calloc(1, 4000);
        hidden[number] = ~(uintptr_t)first;
    }
}

__attribute__((noinline)) static void reveal(void)
{
    for (int number = 0; number < COUNT; number++)
        shelf[number] = (void *)~hidden[number];
}

__attribute__((noinline)) static void let_go(void)
{
    for (int number = 0; number < COUNT; number++) {
        void **first = (void **)~hidden[number];

        free(*first);
        free(first);
    }
}

int main(void)
{
    void (*steps[])(void) = {hide, let_go, hide, reveal};

    shelf = calloc(COUNT, sizeof(*shelf));
    for (size_t step = 0;; step++) {
        steps[step % 4]();
        scrub();
        say(step ? "done\n" : "ready\n");
        wait_for_line();
    }
}
