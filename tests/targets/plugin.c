// A shared library that allocates, to be opened while tracing goes on.
#include <stdlib.h>

void *plugin_allocate(size_t size);
void plugin_release(void *block);

__attribute__((noinline)) void *plugin_allocate(size_t size)
{
    void *block = malloc(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) void plugin_release(void *block)
{
    free(block);
    __asm__ volatile("");
}
