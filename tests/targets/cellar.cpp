// A pool whose functions throw when it is full: exceptions pass through what is traced.
#include <stdexcept>

extern "C" {
#include "command.h"
}

struct Cellar {
    char *next;
    char *end;
};

static char memory[1 << 16];
static long blocks, bytes, caught;

NOINLINE void *cellar_take(Cellar &cellar, std::size_t size)
{
    char *block = cellar.next;

    if (static_cast<std::size_t>(cellar.end - block) < size)
        throw std::length_error("full");
    cellar.next += size;
    return block;
}

NOINLINE static void take_until_full(Cellar &cellar, std::size_t size)
{
    try {
        for (;;) {
            void *block = cellar_take(cellar, size);
            __asm__ volatile("" : "+r"(block));
            blocks++;
            bytes += static_cast<long>(size);
        }
    } catch (const std::length_error &) {
        caught++;
    }
}

int main()
{
    say("ready\n");
    for (;;) {
        wait_for_line();
        Cellar cellar{memory, memory + sizeof(memory)};
        blocks = bytes = 0;
        for (std::size_t size : {1000, 3000, 200, 70, 5, 900, 1})
            take_until_full(cellar, size);
        tell("{\"blocks\":%ld,\"bytes\":%ld,\"caught\":%ld}\n", blocks, bytes, caught);
    }
}
