// Is in a restartable sequence all the time (rseq(2)), as glibc has registered it.
//
//   sequence
//
// Says "ready". Never answers.
#define _GNU_SOURCE
#include <sys/rseq.h>

#include "command.h"

int main(void)
{
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    static struct rseq_cs section __attribute__((aligned(32)));

    free(malloc(1));
    say("ready\n");
#ifdef __aarch64__
    __asm__ volatile("adr x9, 1f\n\tmov x10, #16\n\tstp x9, x10, [%1, #8]\n\t"
                     "adr x9, 2f\n\tstr x9, [%1, #24]\n"
                     "0:\tstr %1, [%0, #8]\n"
                     "1:\tb 1b\n\t.fill 64, 1, 0\n\t.long 0xd428bc00\n"
                     "2:\tb 0b"
                     : : "r"(area), "r"(&section) : "x9", "x10", "memory");
#else
    __asm__ volatile("leaq 1f(%%rip), %%rax\n\tmovq %%rax, 8(%1)\n\t"
                     "movq $16, 16(%1)\n\tleaq 2f(%%rip), %%rax\n\tmovq %%rax, 24(%1)\n"
                     "0:\tmovq %1, 8(%0)\n"
                     "1:\tjmp 1b\n\t.fill 64, 1, 0x90\n\t.long 0x53053053\n"
                     "2:\tjmp 0b"
                     : : "r"(area), "r"(&section) : "rax", "memory");
#endif
}
