// Reports of allocations whose arguments are in places of every kind: each has the size 100 + its
// number, and is on the device of its number; the last one is on none. Says "ready", and reports at each line it hears.
#include "command.h"
#include "usdt.h"

USDT_COUNTER(pytorch, malloc);

long table[4] __attribute__((used)) = {103, 3, 4, 104};

#define REPORT(number, setup, places) \
    __asm__ volatile("mov %0, %%rdi\n" setup USDT_NOTE(pytorch, malloc, "8@%%rdi " places) \
                     : : "r"(0x7e0000000000 + ((long)number << 32)), "r"(table), "r"(end) \
                     : "rax", "rbx", "rcx", "rdx", "rdi", "r8", "memory")

int main(void)
{
    char line[64];
    // The last byte before memory that can't be read.
    char *pages = outside_the_heap(8192);
    char *end = pages + 4095;

    *end = 106;
    mprotect(pages + 4096, 4096, PROT_NONE);
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        REPORT(0, "", "1@$0 8@$100");
        REPORT(1, "movabs $0xffffffff00000065, %%rax\nmov $0x01ff, %%ebx\n", "1@%%bh 4@%%eax");
        REPORT(2, "movabs $0x7777777777770066, %%rax\nmov $0xff02, %%ebx\n", "-1@%%bl -2@%%ax");
        REPORT(3, "", "4@8+table(%%rip) -8@table(%%rip)");
        REPORT(4, "mov %1, %%rcx\nmov $2, %%edx\n", "2@16(%%rcx) 8@8(%%rcx,%%rdx,8)");
        REPORT(5, "movabs $0xdeadbeef00000005, %%r8\nlea 1(%1), %%rdx\nmovq $105, 8(%1)\n"
               "shr $2, %%rdx\n", "-4@%%r8d 4@8(,%%rdx,4)");
        __asm__ volatile("movq $3, 8(%0)" : : "r"(table) : "memory");
        REPORT(6, "mov %2, %%rcx\nmov $6, %%ebx\n", "8@%%rbx -1@(%%rcx)");
        // The CPU, for which PyTorch has -1.
        REPORT(7, "mov $0xff, %%eax\n", "-1@%%al 8@$107");
        say("done\n");
    }
}
