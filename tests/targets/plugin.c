// A shared library that allocates, to be opened while tracing goes on. INNER: the name of a function
// of its own that does so.
#include <stdlib.h>

void *plugin_allocate(size_t size);
void plugin_release(void *block);

#ifdef INNER
__attribute__((noinline)) static void *INNER(size_t size)
{
    void *block = malloc(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}
#else
#define INNER malloc
#endif

__attribute__((noinline)) void *plugin_allocate(size_t size)
{
    void *block = INNER(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) void plugin_release(void *block)
{
    free(block);
    __asm__ volatile("");
}
