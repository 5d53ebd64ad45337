// An allocation under a function whose last instruction is a call that never returns.
#include "command.h"

static void *volatile kept;

NOINLINE __attribute__((noreturn)) static void never_returns(void)
{
    kept = malloc(888);
    finish();
    _exit(0);
}

NOINLINE __attribute__((noreturn)) static void ends_with_a_call(void)
{
    never_returns();
}

// Lies behind it, to be mistaken for it.
NOINLINE static void next_one(void)
{
    kept = NULL;
    __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
    (void)argv;
    wait_for_go();
    if (argc > 1)
        next_one();
    ends_with_a_call();
}
