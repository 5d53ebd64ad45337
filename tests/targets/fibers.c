// Allocates on stacks that come and go, from its first thread and another one.
//
//   fibers ROUNDS
//
// Says "ready". At a line it hears, each of both threads keeps so many blocks of each kind, and
// frees as many others in between:
//   in_fiber    48 bytes, on a stack that is mapped anew each time, of another size and at another
//               place, with nothing beside it; a third has such a stack where the last one was
//   in_handler  80 bytes, in a signal handler that has a stack of its own
//   in_alloca   112 bytes, below up to 2 MiB of stack that nobody has ever touched
//   with_junk   144 bytes, in code that no file describes and whose frame pointer points to
//               nothing, or to what a third thread maps and unmaps
// Then it answers "done".
#define _GNU_SOURCE
#include <alloca.h>
#include <signal.h>
#include <ucontext.h>

#include "command.h"

#define PAGE 4096UL
#define ARENA (256 * PAGE)

typedef void *stub_type(size_t size, const void *frame, void *(*function)(size_t));

static long rounds;
static stub_type *stub;
static char *flickering; // is mapped and unmapped all the time
static volatile int is_over;

static __thread void *volatile kept;
static __thread char *arena;
static __thread ucontext_t outside, inside;
static __thread uint64_t dice;

static uint64_t draw(uint64_t below)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (dice >> 33) % below;
}

static void *map(char *at, size_t size, int access)
{
    int fixed = at ? MAP_FIXED : 0;
    void *memory = mmap(at, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);

    if (memory == MAP_FAILED)
        _exit(4);
    return memory;
}

#define USABLE (PROT_READ | PROT_WRITE)
// As good as unmapped, but nothing else comes there.
#define GONE PROT_NONE

NOINLINE static void in_fiber(int depth)
{
    char room[96];

    __asm__ volatile("" : : "r"(room) : "memory");
    if (depth) {
        in_fiber(depth - 1);
    } else {
        free(malloc(64));
        kept = malloc(48);
    }
    __asm__ volatile("");
}

static void fiber_main(int depth)
{
    in_fiber(depth);
}

NOINLINE static void run_fiber(char *stack, size_t size)
{
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = size;
    inside.uc_link = &outside;
    makecontext(&inside, (void (*)(void))fiber_main, 1, (int)draw(size / PAGE * 12));
    swapcontext(&outside, &inside);
}

static void use_fibers(void)
{
    size_t pages = 4 + draw(60);
    char *stack = arena + draw(ARENA / PAGE - pages) * PAGE;

    if (draw(3) == 0) {
        // Less of the same: what was above it is gone.
        run_fiber(map(stack, pages * PAGE, USABLE), pages * PAGE);
        free(kept);
        map(stack + 3 * PAGE, (pages - 3) * PAGE, GONE);
        pages = 3;
    } else {
        map(stack, pages * PAGE, USABLE);
    }
    run_fiber(stack, pages * PAGE);
    map(stack, pages * PAGE, GONE);
}

NOINLINE static void in_handler(int number)
{
    (void)number;
    free(malloc(64));
    kept = malloc(80);
}

NOINLINE static void interrupted(void)
{
    raise(SIGUSR1);
    __asm__ volatile("");
}

NOINLINE static void in_alloca(void)
{
    volatile char *room = alloca(1 + draw(2 << 20));

    room[0] = 0;
    free(malloc(64));
    kept = malloc(112);
}

NOINLINE static void with_junk(void)
{
    char here[64];
    char *frames[] = {
        NULL, (char *)1, (char *)-1, arena + 64, flickering + 128, flickering + PAGE - 16,
        (char *)0x7ffffffff000, (char *)(0x5aUL << 47), here,
    };

    memset(here, 0x41, sizeof(here));
    free(stub(64, frames[draw(9)], malloc));
    kept = stub(144, frames[draw(9)], malloc);
}

static void *work(void *argument)
{
    stack_t alternate = {.ss_size = 16 * PAGE};

    dice = (uintptr_t)argument;
    arena = map(NULL, ARENA, GONE);
    for (long n = 0; n < rounds; n++) {
        use_fibers();
        alternate.ss_sp = map(NULL, alternate.ss_size, USABLE);
        sigaltstack(&alternate, NULL);
        interrupted();
        sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
        munmap(alternate.ss_sp, alternate.ss_size);
        in_alloca();
        with_junk();
    }
    return NULL;
}

static void *flicker(void *argument)
{
    while (!is_over) {
        map(flickering, PAGE, USABLE);
        map(flickering, PAGE, GONE);
    }
    return argument;
}

int main(int argc, char **argv)
{
    // push %rbp; mov %rsi,%rbp; call *%rdx; pop %rbp; ret
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xf5, 0xff, 0xd2, 0x5d, 0xc3};
    struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
    pthread_t other, third;

    if (argc < 2)
        return 2;
    rounds = atol(argv[1]);
    stub = map(NULL, PAGE, USABLE);
    memcpy(stub, code, sizeof(code));
    mprotect(stub, PAGE, PROT_READ | PROT_EXEC);
    flickering = map(NULL, PAGE, USABLE);
    sigaction(SIGUSR1, &action, NULL);
    wait_for_go();
    third = begin_thread(flicker, NULL);
    other = begin_thread(work, (void *)7);
    work((void *)5);
    pthread_join(other, NULL);
    is_over = 1;
    pthread_join(third, NULL);
    finish();
    return 0;
}
