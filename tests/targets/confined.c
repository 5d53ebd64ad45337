// Executes a program with system calls forbidden that it need not make: they end it.
//
//   confined PROGRAM ARGUMENT…
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REFUSED(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static struct sock_filter steps[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    REFUSED(SYS_process_vm_readv), REFUSED(SYS_nanosleep), REFUSED(SYS_rt_sigprocmask),
    REFUSED(SYS_gettid), REFUSED(SYS_mremap), REFUSED(SYS_membarrier), REFUSED(SYS_memfd_create),
    REFUSED(SYS_ftruncate), REFUSED(SYS_madvise), REFUSED(SYS_getpid), REFUSED(SYS_fcntl),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = {sizeof(steps) / sizeof(*steps), steps};

int main(int n, char **words)
{
    (void)n;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        return 3;
    execv(words[1], words + 1);
    return 4;
}
