// Everything at once, from several threads, with the program's own books.
//
//   chaos THREADS OPERATIONS SEED LIBRARY [FILE]
//
// Threads allocate, move and free each other's blocks: plainly, on stacks of coroutines, in signal
// handlers with a stack of their own, and through LIBRARY (plugin.c), which is opened for that and
// closed at once. In between they fork children, which do so as well, and then end, execute another
// program or are killed; map and unmap memory by system calls; and are interrupted by signals. The
// books are kept outside the heap: by function, blocks and bytes. Says "ready", and runs once per
// line it hears, or with FILE once and at once. Answers with the books, or writes them there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#include "command.h"

enum site { PLAIN, COROUTINE, HANDLER, PLUGIN, SITES };
enum { SLOTS = 500, STACK = 1 << 16, MOST_THREADS = 8, SLOW = 60 };

#define BUSY ((void *)-1)

static const char *const names[SITES] = {"by_plain", "by_coroutine", "by_handler", "by_plugin"};
static const char *library, *self;
static long operations;
static unsigned seed;
static struct { long count, bytes; } books[SITES];
static struct slot { void *block; size_t size; enum site site; } slots[SLOTS];
static __thread struct { size_t size; void *block; ucontext_t here, there; char *stack; } own;

static void book(const struct slot *slot, long sign)
{
    __atomic_add_fetch(&books[slot->site].count, sign, __ATOMIC_RELAXED);
    __atomic_add_fetch(&books[slot->site].bytes, sign * (long)slot->size, __ATOMIC_RELAXED);
}

NOINLINE static void *by_plain(size_t size)
{
    void *volatile block = malloc(size);

    return block;
}

NOINLINE static void by_coroutine(void)
{
    own.block = malloc(own.size);
    swapcontext(&own.there, &own.here);
    _exit(4);
}

NOINLINE static void by_handler(int number)
{
    if (number == SIGUSR1)
        own.block = malloc(own.size);
    __asm__ volatile("");
}

NOINLINE static void *by_plugin(size_t size)
{
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL), *(*allocate)(size_t), *volatile block;

    if (!opened)
        _exit(5);
    allocate = (void *(*)(size_t))dlsym(opened, "plugin_allocate");
    block = allocate(size);
    dlclose(opened);
    return block;
}

static void *make(enum site site, size_t size)
{
    own.size = size;
    if (site == PLAIN)
        return by_plain(size);
    if (site == PLUGIN)
        return by_plugin(size);
    if (site == HANDLER) {
        pthread_kill(pthread_self(), SIGUSR1);
        return own.block;
    }
    getcontext(&own.there);
    own.there.uc_stack.ss_sp = own.stack;
    own.there.uc_stack.ss_size = STACK;
    makecontext(&own.there, by_coroutine, 0);
    swapcontext(&own.here, &own.there);
    return own.block;
}

static void change(uint64_t dice, enum site site)
{
    struct slot *slot = &slots[dice % SLOTS];
    void *block = __atomic_exchange_n(&slot->block, BUSY, __ATOMIC_ACQUIRE);
    size_t size = dice >> 40 & 0x3ff;

    if (block == BUSY)
        return;
    if (block)
        book(slot, -1);
    if (block && dice >> 20 & 1) {
        free(block);
        block = NULL;
    } else {
        if (block)
            free(block);
        slot->site = site;
        slot->size = size;
        block = make(site, size);
        if (!block)
            _exit(6);
        book(slot, 1);
    }
    __atomic_store_n(&slot->block, block, __ATOMIC_RELEASE);
}

// Other threads' locks may be taken for good in a child: only malloc's are not.
static void have_child(uint64_t dice)
{
    pid_t child = fork();
    int status;

    if (!child) {
        for (int n = 0; n < 50; n++)
            change(next_random(&dice), n % PLUGIN);
        if (dice & 1 << 20)
            execl(self, self, (char *)NULL);
        if (dice & 1 << 21)
            raise(SIGKILL);
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0)
        ;
}

static void map_something(uint64_t dice)
{
    size_t size = ((dice >> 40 & 15) + 1) << 12;
    char *memory = (char *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);

    memory[size - 1] = 1;
    if (dice & 1 << 20)
        syscall(SYS_munmap, memory, size);
}

static void *work(void *number)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + (uint64_t)number * 0xd1342543de82ef95u + 1;
    stack_t other = {.ss_sp = outside_the_heap(STACK), .ss_size = STACK};

    own.stack = outside_the_heap(STACK);
    sigaltstack(&other, NULL);
    for (long n = 0; n < operations; n++) {
        uint64_t dice = next_random(&state);

        // Until it is known how to unwind handlers' and coroutines' stacks, each is sent whole.
        if (n < SLOW)
            usleep(3000);
        if (dice >> 32 & 0xff)
            change(next_random(&state), dice >> 24 & 0x1f ? (dice >> 10) % PLUGIN : PLUGIN);
        else if (dice & 1)
            have_child(next_random(&state));
        else
            map_something(next_random(&state));
    }
    return NULL;
}

static void run(long threads, int fd)
{
    pthread_t thread[MOST_THREADS];
    char line[512];
    int used = 0;

    for (long n = 0; n < threads; n++)
        thread[n] = begin_thread(work, (void *)n);
    for (long n = 0; n < threads; n++)
        pthread_join(thread[n], NULL);
    for (int n = 0; n < SITES; n++)
        used += snprintf(line + used, sizeof(line) - (size_t)used, "%s\"%s\":[%ld,%ld]",
                         n ? "," : "{", names[n], books[n].count, books[n].bytes);
    used += snprintf(line + used, sizeof(line) - (size_t)used, "}\n");
    if (write(fd, line, (size_t)used) != used)
        _exit(7);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = by_handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct itimerval timer = {{0, 3000}, {0, 3000}};

    if (argc < 5) // executed by a child
        return 0;
    self = argv[0];
    operations = atol(argv[2]);
    seed = (unsigned)atol(argv[3]);
    library = argv[4];
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &timer, NULL);
    if (argc > 5) {
        run(atol(argv[1]), open(argv[5], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
        return 0;
    }
    say("ready\n");
    for (;;) {
        wait_for_line();
        run(atol(argv[1]), 1);
    }
}
