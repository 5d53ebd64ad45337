// Gives up system calls, seccomp(2).
//
//   sandbox WAY
//
// Says "ready". At the next line it keeps a block and gives up all but reading and writing (strict),
// or those that read other processes' memory or sleep, by one function or another (prctl, seccomp).
// It keeps 10 blocks of 1000 bytes on another stack then (not strict), 10 of 100 bytes where its
// stack has not been before, and answers "done".
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "command.h"

#define REFUSED(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static struct sock_filter steps[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    REFUSED(SYS_process_vm_readv), REFUSED(SYS_nanosleep), REFUSED(SYS_clock_nanosleep),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = {sizeof(steps) / sizeof(*steps), steps};
static ucontext_t here, there;
static char stack[1 << 16];
static void *volatile kept[100];

static __attribute__((noinline)) int deep(int n)
{
    char volatile page[16384];

    page[0] = page[16383] = (char)n;
    kept[n] = malloc(100);
    return n < 10 ? deep(n + 1) + page[16383] : page[0];
}

static void elsewhere(void)
{
    for (int n = 0; n < 10; n++)
        kept[50 + n] = malloc(1000);
}

int main(int n, char **words)
{
    const char *way = words[n - 1];
    char line[16];
    int is_strict = !strcmp(way, "strict");

    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof(stack);
    there.uc_link = &here;
    makecontext(&there, elsewhere, 0);
    say("ready\n");
    hear(line, sizeof(line));
    kept[0] = malloc(100);
    if (is_strict) {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    } else {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (!strcmp(way, "prctl") ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) :
                        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
            return 3;
        swapcontext(&here, &there);
    }
    deep(1);
    say("done\n");
    hear(line, sizeof(line));
    syscall(SYS_exit, 0);
}
