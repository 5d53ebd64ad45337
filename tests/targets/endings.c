// Ends with leaks, or without. The first argument says which, and how; further ones are the next run's.
#define _GNU_SOURCE
#include <signal.h>

#include "command.h"

struct node {
    struct node *next, *other;
    char rest[48];
};

static void *volatile kept;
static __thread void *volatile own;
static pthread_barrier_t begun;

NOINLINE static void *allocate(size_t size)
{
    return memset(malloc(size), 0, size);
}

NOINLINE static struct node *make(struct node *next)
{
    struct node *node = allocate(sizeof *node);

    node->next = next;
    return node;
}

NOINLINE static void direct(void)
{
    allocate(100);
    allocate(100);
}

NOINLINE static void indirect(void)
{
    make(make(make(NULL)));
}

NOINLINE static void ring(void)
{
    struct node *first = make(NULL);

    first->next = make(first);
}

NOINLINE static void reallocated(void)
{
    void *block = allocate(40);

    kept = allocate(24);
    block = realloc(block, 4000);
    memset(block, 0, 4000);
}

NOINLINE static void large(void)
{
    allocate(1 << 20);
}

NOINLINE static void reachable(void)
{
    kept = make(make(NULL));
}

NOINLINE static void inside(void)
{
    kept = (char *)allocate(100) + 60;
}

NOINLINE static void local(void)
{
    own = allocate(100);
}

static void *wait_with_block(void *nothing)
{
    void *volatile block = allocate(100);

    (void)nothing;
    pthread_barrier_wait(&begun);
    for (;;)
        pause();
    return block;
}

// Only a register has the block's address while the thread waits.
static void *wait_with_register(void *nothing)
{
    register void *block __asm__("r12") = allocate(100);

    (void)nothing;
    scrub();
    pthread_barrier_wait(&begun);
    __asm__ volatile("1: mov $34, %%eax\n\tsyscall\n\tjmp 1b" : : "r"(block) : "rax", "rcx", "r11");
    return NULL;
}

static void *end_with_block(void *nothing)
{
    void *volatile block = allocate(100);

    own = allocate(60);
    (void)block;
    return nothing;
}

static void *leak_last(void *main_thread)
{
    pthread_join(*(pthread_t *)main_thread, NULL);
    direct();
    scrub();
    return NULL;
}

static void waiting(void *(*what)(void *))
{
    pthread_barrier_init(&begun, NULL, 2);
    begin_thread(what, NULL);
    pthread_barrier_wait(&begun);
    usleep(20000); // it is in its system call soon; nothing depends on when
}

static void ended(void)
{
    pthread_join(begin_thread(end_with_block, NULL), NULL);
}

static void without_main(void)
{
    static pthread_t main_thread;

    main_thread = pthread_self();
    begin_thread(leak_last, &main_thread);
    pthread_exit(NULL);
}

NOINLINE static void deep(void)
{
    void *volatile block = allocate(100);

    exit(block == NULL);
}

static void free_kept(void)
{
    free(kept);
    kept = NULL;
}

static void at_exit(void)
{
    atexit(free_kept);
    kept = allocate(100);
}

static void in_child(void)
{
    pid_t child = fork();

    if (!child) {
        direct();
        exit(0);
    }
    waitpid(child, NULL, 0);
}

static void copy_input(void)
{
    int c;

    while ((c = getchar()) != EOF)
        putchar(c);
}

static void leave_at_once(void)
{
    direct();
    _exit(0);
}

static void close_all(void)
{
    for (int number = 3; number < 1024; number++)
        close(number);
    direct();
}

static void fail(void)
{
    exit(5);
}

static void leak_and_fail(void)
{
    direct();
    scrub();
    exit(5);
}

static void kill_own(void)
{
    direct();
    raise(SIGKILL);
}

static void terminate(void)
{
    direct();
    scrub();
    raise(SIGTERM);
}

static void thread_block(void)
{
    waiting(wait_with_block);
}

static void thread_register(void)
{
    waiting(wait_with_register);
}

static const struct {
    const char *name;
    void (*function)(void);
} ENDINGS[] = {
    {"direct", direct}, {"indirect", indirect}, {"ring", ring}, {"realloc", reallocated},
    {"large", large}, {"reachable", reachable}, {"inside", inside}, {"local", local},
    {"thread", thread_block}, {"register", thread_register}, {"ended", ended},
    {"headless", without_main}, {"deep", deep}, {"atexit", at_exit}, {"fork", in_child},
    {"copy", copy_input}, {"_exit", leave_at_once}, {"closed", close_all}, {"fail", fail},
    {"leak-fail", leak_and_fail}, {"abort", abort}, {"kill", kill_own}, {"terminate", terminate},
};

int main(int count, char **words)
{
    for (size_t n = 0; count > 1 && n < sizeof ENDINGS / sizeof *ENDINGS; n++)
        if (!strcmp(words[1], ENDINGS[n].name))
            ENDINGS[n].function();
    if (count > 2) {
        direct();
        words[1] = words[0];
        execv(words[0], words + 1);
    }
    scrub();
    return 0;
}
