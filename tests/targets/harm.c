// Programs that a profiler could harm, each in a way of its own. None but locker waits to be traced.
//
//   harm WAY [NUMBER]
//
//   abort           frees a block twice
//   blocks N        allocates N blocks of 1 MiB; exit status 1 if it got fewer
//   callbacks       allocates in fork handlers, in children and in a signal handler
//   contexts        switches between 50 stacks and jumps out of deep calls, allocating in between
//   descriptors     closes all descriptors it could have, and has a child without any
//   environment     counts its environment and the entries of the auxiliary vector behind it
//   exec N          executes itself N times, every second time from another thread
//   fixed           maps 64 areas at addresses of its own choice
//   identity        becomes another user, comes back, and becomes it for good; beside a thread
//   lock USER       locks its memory, present and future, as a user by number
//   locker          at a line it hears, it keeps 100 blocks of 1000 bytes, locks its memory, keeps
//                   100 more, and answers with how much is locked then, in KiB
//   profile         counts 50 signals of a profiling timer, whose handler allocates
//   segv            reads where nothing is
//   threads N       begins N times 100 threads, which allocate
//   userfault       handles its page faults itself, and allocates while one is pending
//   vfork           executes /bin/true by vfork and posix_spawn
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#include "command.h"

extern char **environ;

static long number;

static void churn(long count)
{
    for (long n = 0; n < count; n++)
        free(malloc((size_t)(n % 3000)));
}

static int abort_(void)
{
    void *volatile block = malloc(10);

    free(block);
    free(block);
    return 0;
}

static int blocks(void)
{
    long count = 0;
    char *block;

    while (count < number && (block = malloc(1 << 20))) {
        *block = 1;
        count++;
    }
    puts(count < number ? "fewer" : "all");
    return count < number;
}

static volatile long signals;
static volatile int is_allocating;
static void *volatile at_fork[100];

static void before_fork(void) { at_fork[0] = malloc(100); }
static void after_fork(void) { free(at_fork[0]); churn(10); }

static void on_signal(int which)
{
    (void)which;
    signals++;
    // Else it could be in the middle of malloc(3), which may not be called again then.
    if (!is_allocating)
        churn(3);
}

static int callbacks(void)
{
    int good = 0, status;

    pthread_atfork(before_fork, after_fork, after_fork);
    signal(SIGUSR1, on_signal);
    for (int n = 0; n < 30; n++) {
        pid_t child = fork();

        raise(SIGUSR1);
        if (!child) {
            churn(100);
            _exit((int)signals);
        }
        waitpid(child, &status, 0);
        good += WEXITSTATUS(status) == n + 1;
    }
    printf("%d children, %ld signals\n", good, signals);
    return 0;
}

static ucontext_t outside, inside[50];
static int over;
static jmp_buf back;

static void in_context(int at)
{
    for (int n = 0; n < 100; n++) {
        free(malloc((size_t)(at + n)));
        swapcontext(&inside[at], &outside);
    }
    over++;
}

static void (*volatile go_deeper)(int);

NOINLINE static void jump(int n)
{
    free(malloc((size_t)n + 1));
    if (!n)
        longjmp(back, 1);
    go_deeper(n - 1);
    __asm__ volatile("");
}

static int contexts(void)
{
    volatile int jumps = 0;

    go_deeper = jump;
    for (int n = 0; n < 50; n++) {
        getcontext(&inside[n]);
        inside[n].uc_stack = (stack_t){.ss_sp = malloc(32768), .ss_size = 32768};
        inside[n].uc_link = &outside;
        makecontext(&inside[n], (void (*)(void))in_context, 1, n);
    }
    for (int round = 0; round < 101; round++)
        for (int n = 0; n < 50; n++)
            swapcontext(&outside, &inside[n]);
    while (jumps < 500)
        if (setjmp(back))
            jumps++;
        else
            jump(30);
    printf("%d contexts, %d jumps\n", over, jumps);
    return 0;
}

static int descriptors(void)
{
    int status;
    pid_t child;

    for (int n = 3; n < 1024; n++)
        close(n);
    printf("first descriptor %d\n", open("/dev/null", O_RDONLY));
    fflush(stdout);
    churn(1000);
    child = fork();
    if (!child) {
        setsid();
        for (int n = 0; n < 4; n++)
            close(n);
        churn(1000);
        _exit(open("/dev/null", O_RDONLY));
    }
    waitpid(child, &status, 0);
    return status;
}

static int environment(void)
{
    ElfW(auxv_t) *entry;
    int count = 0, entries = 0;
    long page = 0;

    while (environ[count])
        count++;
    for (entry = (void *)(environ + count + 1); entry->a_type != AT_NULL; entry++) {
        entries += entry->a_type != AT_IGNORE;
        if (entry->a_type == AT_PAGESZ)
            page = (long)entry->a_un.a_val;
    }
    printf("%d variables, %d entries, page size %ld\n", count, entries, page);
    for (char **each = environ; *each; each++)
        if (!strncmp(*each, "LD_", 3) || !strncmp(*each, "TRACELLOC", 9))
            puts(*each);
    return 0;
}

static void *execute(void *argument)
{
    char text[16];
    char *words[] = {"harm", "exec", text, NULL};

    snprintf(text, sizeof(text), "%ld", number - 1);
    execv("/proc/self/exe", words);
    return argument;
}

static int exec(void)
{
    pthread_t thread;

    churn(100);
    if (!number)
        return puts("executed") < 0;
    if (number % 2 && !pthread_create(&thread, NULL, execute, NULL))
        pthread_join(thread, NULL);
    execute(NULL);
    return 1;
}

static int fixed(void)
{
    int same = 0;

    for (int pass = 0; pass < 2; pass++)
        for (long n = 0; n < 64; n++) {
            long *at = (long *)((n << 30) + 0x100003000);

            if (!pass && mmap(at, 1 << 29, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at)
                *at = n;
            churn(10);
            same += pass && *at == n;
        }
    printf("%d areas\n", same);
    return 0;
}

static void *wait_for_close(void *pipe_end)
{
    char byte;

    churn(100);
    return read((int)(long)pipe_end, &byte, 1) ? pipe_end : NULL;
}

static int identity(void)
{
    int ends[2];
    pthread_t thread;

    if (pipe(ends) || pthread_create(&thread, NULL, wait_for_close, (void *)(long)ends[0]))
        return 1;
    for (int turn = 0; turn < 3; turn++) {
        int one = seteuid(65534), another;

        churn(100);
        another = turn < 2 ? seteuid(0) : setuid(65534);
        churn(100);
        printf("%d %d: uid %d, effective %d, dumpable %d\n", one, another, getuid(), geteuid(),
               prctl(PR_GET_DUMPABLE));
    }
    close(ends[1]);
    pthread_join(thread, NULL);
    return 0;
}

static void *allocate_some(void *argument)
{
    void *volatile some[50];

    for (size_t n = 0; n < 50; n++)
        some[n] = malloc(n * 10);
    for (size_t n = 0; n < 50; n++)
        free(some[n]);
    return argument;
}

static int threads(void)
{
    pthread_t all[100];
    int good = 0;
    void *result;

    for (int round = 0; round < number; round++) {
        for (int n = 0; n < 100; n++)
            all[n] = begin_thread(allocate_some, all);
        for (int n = 0; n < 100; n++) {
            pthread_join(all[n], &result);
            good += result == all;
        }
    }
    printf("%d threads\n", good);
    return 0;
}

static long locked(void)
{
    static char line[200];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");

    while (fgets(line, sizeof(line), status) && sscanf(line, "VmLck: %ld", &kib) < 1)
        ;
    return kib;
}

static void *volatile kept[200];

static int locker(void)
{
    wait_for_go();
    for (int n = 0; n < 200; n++) {
        if (n == 100 && mlockall(MCL_CURRENT | MCL_FUTURE))
            return 3;
        kept[n] = malloc(1000);
    }
    tell("%ld\n", locked());
    wait_for_line();
    return 0;
}

static int lock(void)
{
    // A number that is not 0 has no right to exceed RLIMIT_MEMLOCK.
    int is_user = !setuid((uid_t)number);
    int error = mlockall(MCL_CURRENT | MCL_FUTURE) ? errno : 0;
    long locked_kb;
    char *block;

    churn(20000);
    block = malloc(1 << 20);
    if (block)
        memset(block, 1, 1 << 20);
    locked_kb = locked();
    printf("user %d, error %d, block %d, locked %s\n", is_user, error, !!block,
           !locked_kb ? "nothing" : locked_kb > 50000 ? "too much" : "as expected");
    return 0;
}

static int profile(void)
{
    struct itimerval every = {{0, 1000}, {0, 1000}};

    signal(SIGPROF, on_signal);
    setitimer(ITIMER_PROF, &every, NULL);
    for (size_t n = 0; signals < 50; n++) {
        void *block;

        is_allocating = 1;
        block = malloc(n % 500);
        is_allocating = 0;
        for (volatile int turn = 0; turn < 100; turn++)
            ;
        is_allocating = 1;
        free(block);
        is_allocating = 0;
    }
    setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
    puts("profiled");
    return 3;
}

static int segv(void)
{
    churn(10);
    return *(volatile int *)8;
}

static void *handle_faults(void *descriptor)
{
    static char zeros[4096];
    struct uffd_msg message;
    int fd = (int)(long)descriptor;

    while (read(fd, &message, sizeof(message)) == sizeof(message)) {
        struct uffdio_copy copy = {
            .dst = message.arg.pagefault.address & ~4095UL, .src = (unsigned long)zeros, .len = 4096
        };

        // The other thread waits in its fault.
        churn(100);
        ioctl(fd, UFFDIO_COPY, &copy);
    }
    return NULL;
}

static int userfault(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC), sum = 0;
    struct uffdio_api api = {.api = UFFD_API};
    char *area = mmap(NULL, 32 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {
        .range = {(unsigned long)area, 32 * 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING
    };
    pthread_t thread;

    if (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range)
        || pthread_create(&thread, NULL, handle_faults, (void *)(long)fd))
        return 1;
    for (int n = 0; n < 32; n++) {
        sum += *(volatile char *)(area + n * 4096);
        free(malloc((size_t)n));
    }
    printf("sum %d\n", sum);
    return 0;
}

static int vforks(void)
{
    char *words[] = {"true", NULL};
    volatile int good = 0;
    int status;

    for (volatile int n = 0; n < 15; n++) {
        pid_t child = vfork();

        if (!child) {
            execv("/bin/true", words);
            _exit(9);
        }
        good += waitpid(child, &status, 0) == child && !status;
        churn(10);
        if (!posix_spawn(&child, "/bin/true", NULL, NULL, words, environ))
            good += waitpid(child, &status, 0) == child && !status;
    }
    printf("%d children\n", good);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} ways[] = {
    {"abort", abort_}, {"blocks", blocks}, {"callbacks", callbacks}, {"contexts", contexts},
    {"descriptors", descriptors}, {"environment", environment}, {"exec", exec},
    {"fixed", fixed}, {"identity", identity}, {"lock", lock}, {"locker", locker},
    {"profile", profile}, {"segv", segv}, {"threads", threads},
    {"userfault", userfault}, {"vfork", vforks},
};

int main(int argc, char **argv)
{
    number = argc > 2 ? atol(argv[2]) : 0;
    for (size_t n = 0; n < sizeof(ways) / sizeof(*ways); n++)
        if (!strcmp(argv[1], ways[n].name))
            return ways[n].run();
    return 99;
}
