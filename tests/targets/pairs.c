// As many malloc/free pairs as it is told, at the bottom of ten frames; ends after the last.
//
//   pairs COUNT
#include "command.h"

NOINLINE static void make_pairs(long count)
{
    while (count--) {
        void *volatile block = malloc(64);

        free(block);
    }
}

NOINLINE static void descend(int depth, long count)
{
    if (depth)
        descend(depth - 1, count);
    else
        make_pairs(count);
    __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    free(malloc(1));
    wait_for_go();
    descend(10, atol(argv[1]));
    finish();
    return 0;
}
