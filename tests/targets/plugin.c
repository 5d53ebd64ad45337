// A shared library that allocates, to be opened while tracing goes on. With OTHER, its inner
// function has another name, and lies at the same address.
#include <stdlib.h>

#ifdef OTHER
#define plugin_inner plugin_other
#endif

void *plugin_allocate(size_t size);
void plugin_release(void *block);

__attribute__((noinline)) static void *plugin_inner(size_t size)
{
    void *block = malloc(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) void *plugin_allocate(size_t size)
{
    void *block = plugin_inner(size);

    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) void plugin_release(void *block)
{
    free(block);
    __asm__ volatile("");
}
