// Brings its own malloc, which wraps libc's and leaves by longjmp when asked for 13 bytes.
#include <setjmp.h>

#include "command.h"

void *__libc_malloc(size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *block);

static jmp_buf escape;
static void *volatile kept;

NOINLINE void *malloc(size_t size)
{
    void *block;

    if (size == 13)
        longjmp(escape, 1);
    block = __libc_malloc(size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

void free(void *block)
{
    __libc_free(block);
    __asm__ volatile("");
}

// A jump to libc's: both functions begin with one stack pointer, and return at once.
void *realloc(void *old, size_t size)
{
    return __libc_realloc(old, size);
}

NOINLINE static void allocate(size_t size, int depth)
{
    if (depth)
        allocate(size, depth - 1);
    else
        kept = malloc(size);
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void try_to_allocate(size_t size, int depth)
{
    if (!setjmp(escape))
        allocate(size, depth);
}

int main(void)
{
    wait_for_go();
    try_to_allocate(1001, 3);
    say("first\n");
    wait_for_line();
    try_to_allocate(13, 1); // left by longjmp
    allocate(1002, 9);      // deeper than the call that was left
    free(kept);
    allocate(1003, 9);
    kept = realloc(kept, 1004);
    free(malloc(5));
    finish();
    return 0;
}
