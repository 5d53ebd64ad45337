// Threads that make, move and free blocks as fast as they can: juggler THREADS SLOTS
//
// Every block is in one slot, or hangs on a block that is, and may be moved at any time. What is
// held has up to 1,500 bytes. Loses 300 blocks of 5,000 bytes, says "ready", begins when it hears a
// line, and ends with its input. For each further line it loses 50 such blocks more, and
// answers with the operations so far.
#include "command.h"

enum { LOST_BYTES = 5000, LOST = 300, LOST_LATER = 50, LARGEST = 1500 };

struct ball {
    struct ball *other;
    char rest[];
};

static struct ball *volatile *slots;
static size_t n_slots;
static long operations;

static struct ball *take(size_t slot)
{
    return __atomic_exchange_n(&slots[slot], NULL, __ATOMIC_ACQ_REL);
}

static void drop(struct ball *ball)
{
    while (ball) {
        struct ball *other = ball->other;

        free(ball);
        ball = other;
    }
}

static void put(size_t slot, struct ball *ball)
{
    drop(__atomic_exchange_n(&slots[slot], ball, __ATOMIC_ACQ_REL));
}

static struct ball *make(uint64_t dice)
{
    struct ball *ball = malloc(sizeof(*ball) + (dice >> 20) % (LARGEST - sizeof(*ball)));

    ball->other = NULL;
    return ball;
}

static void *juggle(void *number)
{
    uint64_t state = 88172645463325252 + (uintptr_t)number;

    for (;;) {
        next_random(&state);
        size_t from = (state >> 8) % n_slots, to = (state >> 32) % n_slots;
        struct ball *ball = take(from);

        switch (state & 3) {
        case 0: // a new one instead of what was there
            drop(ball);
            put(from, make(state));
            break;
        case 1: // moved
            put(to, ball);
            break;
        case 2: // what was there hangs on a new one
            if (ball && ball->other) {
                drop(ball->other);
                ball->other = NULL;
            }
            {
                struct ball *first = make(state);

                first->other = ball;
                put(to, first);
            }
            break;
        default: // taken off
            if (ball && ball->other) {
                struct ball *other = ball->other;

                ball->other = NULL;
                put(to, other);
            }
            put(from, ball);
        }
        __atomic_add_fetch(&operations, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(int count, char **words)
{
    char line[64];

    (void)count;
    n_slots = (size_t)atol(words[2]);
    slots = outside_the_heap(n_slots * sizeof(*slots));
    lose_blocks(LOST, LOST_BYTES);
    scrub();
    say("ready\n");
    hear(line, sizeof(line));
    for (size_t slot = 0; slot < n_slots; slot++)
        slots[slot] = make(slot * 7919 << 10);
    for (long thread = atol(words[1]); thread > 0; thread--)
        begin_thread(juggle, (void *)thread);
    for (;;) {
        hear(line, sizeof(line));
        lose_blocks(LOST_LATER, LOST_BYTES);
        scrub();
        tell("%ld\n", operations);
    }
}
