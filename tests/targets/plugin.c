// A shared library that allocates, to be loaded while tracing goes on.
#include <stdlib.h>

void *plugin_allocate(size_t size);

__attribute__((noinline)) void *plugin_allocate(size_t size)
{
    void *block = malloc(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}
