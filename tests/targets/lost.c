// Loses some blocks and keeps others, in rounds:
//
//   drop         a block that nothing points to
//   drop_pair    a block that points to a second one, and nothing points to the first
//   drop_ring    two blocks that point to each other, and nothing else does
//   keep         a block that an array points to
//   keep_inside  a block to whose middle alone a list leads
//   keep_marked  a block whose only pointer carries a tag in its upper 16 bits
//   keep_in_code a block that only an instruction leads to, at an odd address
//
// "ROUNDS MICROSECONDS" on its input: so many rounds, with a pause after each. Then it says "done".
#include "command.h"

enum { MOST = 1 << 16 };

struct link {
    struct link *next;
    char rest[56];
};

static void *volatile kept[MOST];
static volatile uint64_t marked[MOST];
static struct link *volatile inside;
static char *code;
static int count;

NOINLINE static void drop(void)
{
    memset(malloc(96), 1, 96);
}

NOINLINE static void drop_pair(void)
{
    struct link *first = malloc(sizeof *first);

    first->next = malloc(sizeof *first);
    memset(first->next, 0, sizeof *first);
}

NOINLINE static void drop_ring(void)
{
    struct link *first = malloc(sizeof *first);

    first->next = malloc(sizeof *first);
    first->next->next = first;
}

NOINLINE static void keep(void)
{
    kept[count] = malloc(112);
}

NOINLINE static void keep_inside(void)
{
    char *block = calloc(1, 256);
    struct link *middle = (struct link *)(block + 128);

    middle->next = inside;
    inside = middle;
}

NOINLINE static void keep_marked(void)
{
    marked[count] = (uint64_t)(uintptr_t)malloc(80) | 0xfff9000000000000u;
}

NOINLINE static void keep_in_code(void)
{
    void *block = malloc(48);

    memcpy(code + 16 * count + 3, &block, sizeof block);
}

int main(void)
{
    char line[64];

    code = map_memory(NULL, 16 * MOST, PROT_READ | PROT_WRITE | PROT_EXEC, 0, -1);
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        char *end;
        long rounds = strtol(line, &end, 10), pause_us = strtol(end, NULL, 10);

        for (; rounds > 0 && count < MOST; rounds--, count++) {
            drop();
            drop_pair();
            drop_ring();
            keep();
            keep_inside();
            keep_marked();
            keep_in_code();
            usleep((useconds_t)pause_us);
        }
        scrub();
        say("done\n");
    }
}
