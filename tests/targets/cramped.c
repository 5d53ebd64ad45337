// Runs on a small stack amid its own data, with 300 bytes left of that stack.
//
// Linked with -z now: the loader would take more of the stack.
//
//   cramped PLACE   malloc, static, stack, mapped: where the data is; crowded: as malloc, and memory
//                   is mapped below the main thread's stack
//
// Says "ready". At a line it hears, it answers with the number of bytes of its data that have changed.
#define _GNU_SOURCE
#include <alloca.h>
#include <ucontext.h>

#include "command.h"

#define DATA 65536
#define STACK 16384
#define LEFT 300
#define UNTOUCHED 0xAB

struct amid {
    unsigned char data[DATA], stack[STACK], more[DATA];
};

static struct amid *place, at_all_times;
static ucontext_t outside, inside;

NOINLINE static void answer(void)
{
    int changed = 0;
    char text[8];

    for (int n = 0; n < DATA; n++)
        changed += (place->data[n] != UNTOUCHED) + (place->more[n] != UNTOUCHED);
    for (int n = 6; n >= 0; n--, changed /= 10)
        text[n] = '0' + changed % 10;
    text[7] = '\n';
    write(1, text, 8);
}

static void run(void)
{
    unsigned char *here = __builtin_frame_address(0);
    volatile char *room = alloca(here - place->stack - LEFT);

    room[0] = 0;
    write(1, "ready\n", 6);
    for (;;) {
        wait_for_line();
        answer();
    }
}

NOINLINE static void run_in(struct amid *chosen)
{
    place = chosen;
    memset(place, UNTOUCHED, sizeof(*place));
    getcontext(&inside);
    inside.uc_stack.ss_sp = place->stack;
    inside.uc_stack.ss_size = STACK;
    makecontext(&inside, run, 0);
    swapcontext(&outside, &inside);
}

static void map_below_stack(void)
{
    unsigned long start = 0;
    char line[256];
    FILE *maps = fopen("/proc/self/maps", "r");

    while (fgets(line, sizeof(line), maps))
        if (strstr(line, "[stack]"))
            start = strtoul(line, NULL, 16);
    if (mmap((void *)(start - 32768), 4096, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        _exit(4);
}

int main(int argc, char **argv)
{
    struct amid on_stack;
    void *mapped = outside_the_heap(sizeof(on_stack));

    if (argc < 2)
        return 2;
    free(malloc(100));
    if (!strcmp(argv[1], "crowded"))
        map_below_stack();
    run_in(!strcmp(argv[1], "static")  ? &at_all_times
           : !strcmp(argv[1], "stack")  ? &on_stack
           : !strcmp(argv[1], "mapped") ? mapped
                                        : malloc(sizeof(on_stack)));
}
