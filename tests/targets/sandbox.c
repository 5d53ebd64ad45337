// Gives up system calls, seccomp(2).
//
//   sandbox WAY [alone]
//
// Says "ready". At the next line (alone: at once) it keeps a block and gives up all but reading and
// writing (strict), or all that malloc does not make either, by one function or another (prctl,
// seccomp), for all threads while another one allocates (threads), or by instructions of its own
// (inline, inline-strict; if compiled with INLINE). It keeps 10 blocks of 1000 bytes on another stack
// then (not strict), 10 of 100 bytes where its stack has not been before, frees 100,000 others, and
// answers "done".
//
//   sandbox exec PROGRAM ARGUMENT…    executes a program without those that it need not make
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "command.h"

#define REFUSED(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

#define ALLOWED(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter steps[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOWED(SYS_brk), ALLOWED(SYS_mmap), ALLOWED(SYS_munmap), ALLOWED(SYS_mprotect),
    ALLOWED(SYS_futex), ALLOWED(SYS_read), ALLOWED(SYS_write), ALLOWED(SYS_exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_filter before[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    REFUSED(SYS_process_vm_readv), REFUSED(SYS_nanosleep), REFUSED(SYS_rt_sigprocmask),
    REFUSED(SYS_gettid), REFUSED(SYS_mremap), REFUSED(SYS_membarrier), REFUSED(SYS_memfd_create),
    REFUSED(SYS_ftruncate), REFUSED(SYS_madvise), REFUSED(SYS_getpid), REFUSED(SYS_fcntl),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = {sizeof(steps) / sizeof(*steps), steps};
static char stack[1 << 16] __attribute__((aligned(16)));
static void *volatile kept[100];
static volatile int has_begun;

#ifdef INLINE
static inline long call(long number, long a, long b, void *c)
{
    long result;

    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}
#else
#define call(...) syscall(__VA_ARGS__)
#endif

static __attribute__((noinline)) void recurse(int n)
{
    char volatile page[4096];

    page[0] = page[4095] = (char)n;
    free(malloc(200));
    if (n)
        recurse(n - 1);
    page[1] = 0;
}

// Where its stack has not been before, again and again.
static void *allocate(void *arg)
{
    for (int n = 0;; n = (n + 1) % 400, has_begun = 1)
        recurse(n);
    return arg;
}

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
    const char *way = n > 1 ? words[1] : "";
    int is_alone = n > 2;
    int is_strict = !!strstr(way, "strict"), is_shared = !strcmp(way, "threads");

    if (!strcmp(way, "exec")) {
        program = (struct sock_fprog){sizeof(before) / sizeof(*before), before};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) ? 3 :
               execv(words[2], words + 2);
    }
    say("ready\n");
    if (!is_alone)
        wait_for_line();
    kept[0] = malloc(100);
    if (is_shared)
        begin_thread(allocate, NULL);
    while (is_shared && !has_begun)
        ;
    if (!strcmp(way, "inline-strict")) {
        call(157, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, NULL);
    } else if (is_strict) {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    } else {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (!strcmp(way, "prctl")  ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) :
            !strcmp(way, "inline") ? call(317, SECCOMP_SET_MODE_FILTER, 0, &program) :
                                     syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                             is_shared ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program))
            return 3;
        // Without system calls, which swapcontext(3) makes.
        __asm__ volatile("movq %%rsp, %%rbx\n\tmovq %0, %%rsp\n\tcall *%1\n\tmovq %%rbx, %%rsp"
                         : : "r"(stack + sizeof(stack)), "r"(elsewhere)
                         : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11",
                           "memory");
    }
    deep(1);
    for (int i = 0; i < 100000; i++)
        free(malloc(300));
    say("done\n");
    if (!is_alone)
        wait_for_line();
    syscall(is_strict ? SYS_exit : SYS_exit_group, 0);
}
