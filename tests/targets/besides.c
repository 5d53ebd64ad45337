// The library of beside.c.
#include <stdlib.h>

void *beside_keep(size_t size);
void beside_release(void *block);

__attribute__((noinline)) void *beside_keep(size_t size)
{
    void *block = malloc(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) void beside_release(void *block)
{
    free(block);
    __asm__ volatile("");
}
