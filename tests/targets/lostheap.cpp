// Loses structures of each shape, and keeps blocks that only unusual places point to. Answers
// "lose" after it has lost 7 blocks more, and ends with its input.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

namespace app {
struct Circle {
    virtual ~Circle() {}
    char *name = (char *)calloc(1, 300);
    char more[80];
};
}

struct node {
    struct node *next, *other, *up;
    void *data;
    char rest[24];
};

static node *make(size_t size = sizeof(node))
{
    return (node *)calloc(1, size);
}

static node *list(int length)
{
    node *first = nullptr;
    for (int n = 0; n < length; n++) {
        node *one = make();
        one->next = first;
        one->data = calloc(1, 500);
        first = one;
    }
    return first;
}

static node *tree(int depth, node *parent, bool leads_up)
{
    node *one = make(leads_up ? 152 : 136);
    one->up = leads_up ? parent : nullptr;
    if (depth > 1) {
        one->next = tree(depth - 1, one, leads_up);
        one->other = tree(depth - 1, one, leads_up);
    }
    return one;
}

static node *doubly(int length)
{
    node *first = make(104), *last = first;
    for (int n = 1; n < length; n++) {
        last->next = make(104);
        last->next->other = last;
        last = last->next;
    }
    return first;
}

static app::Circle *volatile kept[300];
static char *volatile end_of_array;

// What is lost here is in free memory, too, and in dead parts of the stack.
NOINLINE static void lose()
{
    node *stale[64];
    for (int n = 0; n < 20; n++)
        list(50);
    for (int n = 0; n < 10; n++) {
        node *one = make(200);
        one->next = make(200);
        one->next->next = one;
    }
    for (int n = 0; n < 5; n++)
        doubly(40);
    for (int n = 0; n < 4; n++) {
        tree(6, nullptr, true);
        tree(5, nullptr, false);
    }
    for (int n = 0; n < 600; n++)
        kept[n % 300] = new app::Circle;
    for (int n = 0; n < 64; n++) {
        stale[n] = make(1000);
        stale[n]->data = calloc(1, 700);
    }
    for (int n = 0; n < 64; n++)
        free(stale[n]);
    asm volatile("" ::"r"(memset(malloc(1 << 20), 1, 1 << 20)) : "memory");
}

NOINLINE static void keep()
{
    end_of_array = (char *)malloc(24) + 24;
    struct epoll_event event = {EPOLLIN, {make(72)}};
    int pipes[2];
    if (pipe(pipes) || epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, pipes[0], &event))
        abort();
    event.data.ptr = nullptr;
    struct sigevent signalled = {};
    signalled.sigev_notify = SIGEV_SIGNAL;
    signalled.sigev_signo = SIGUSR1;
    signalled.sigev_value.sival_ptr = make(88);
    static timer_t timer; // a block itself, before glibc 2.34
    timer_create(CLOCK_MONOTONIC, &signalled, &timer);
    stack_t stack = {malloc(1 << 16), 0, 1 << 16};
    sigaltstack(&stack, nullptr);
}

NOINLINE static void clear()
{
    char room[1 << 16];
    memset(room, 0, sizeof room);
    asm volatile("" ::"r"(room) : "memory");
}

static void *in_register(void *)
{
    node *first = list(1000);
    // The list's only pointer is in a register, in a call that never returns, once what list() left
    // below the stack pointer is gone.
#ifdef __aarch64__
    asm volatile("mov x19, %0; mov %0, xzr; sub x9, sp, #512; mov x10, #64;"
                 "1: str xzr, [x9], #8; subs x10, x10, #1; b.ne 1b;"
                 "mov x0, xzr; mov x1, xzr; mov x2, xzr; mov x3, xzr; mov x4, #8;"
                 "mov x8, #73; svc #0" // ppoll
                 : "+r"(first)::"x0", "x1", "x2", "x3", "x4", "x8", "x9", "x10", "x19", "cc", "memory");
#else
    asm volatile("mov %0, %%rbx; lea -512(%%rsp), %%rdi; mov $64, %%ecx; xor %%eax, %%eax; rep stosq;"
                 "mov $34, %%eax; syscall" // pause
                 : "+a"(first)::"rbx", "rcx", "rdi", "r11", "memory");
#endif
    return nullptr;
}

int main()
{
    pthread_t thread;
    lose();
    keep();
    clear();
    pthread_create(&thread, nullptr, in_register, nullptr);
    char line[64];
    puts("ready");
    fflush(stdout);
    while (read(0, line, sizeof line) > 0) {
        for (int n = 0; n < 7; n++)
            asm volatile("" ::"r"(calloc(1, 2000)) : "memory");
        clear();
        puts("done");
        fflush(stdout);
    }
}
