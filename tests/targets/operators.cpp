// All of C++'s operators new and delete, with the program's own books, and exceptions.
//
//   operators ADDRESS_SPACE_MIB|0 [meek]
//
// With `meek` only requests that don't throw ask for too much: allocators written in C end
// the program otherwise.
// With a limit on the address space, and without, requests are made that cannot be met:
// std::bad_alloc is caught, and everything goes on. Blocks are freed by other threads than
// those that made them. Says "ready", then works once per line it hears and answers with
// outstanding blocks and bytes, and how many exceptions it has caught.
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <new>

extern "C" {
#include "command.h"
}

namespace {
enum class How { PLAIN, ARRAY, NOTHROW, ALIGNED, ALIGNED_ARRAY, ALIGNED_NOTHROW, SIZED, COUNT };

struct Slot {
    void *block;
    std::size_t size;
    How how;
};

constexpr int SLOTS = 512, THREADS = 3, TURNS = 1500;
constexpr std::align_val_t ALIGN{64};

Slot *slots; // outside the heap: one half per turn and thread
long blocks, bytes, caught;
bool meek;
int turn;

void book(std::size_t size, long sign)
{
    __atomic_add_fetch(&blocks, sign, __ATOMIC_RELAXED);
    __atomic_add_fetch(&bytes, sign * static_cast<long>(size), __ATOMIC_RELAXED);
}

NOINLINE void make(Slot &slot, How how, std::size_t size)
{
    // The C++ library asks malloc for whole multiples of the alignment.
    size = (size + 63) & ~std::size_t{63};
    switch (how) {
    case How::ARRAY: slot.block = ::operator new[](size); break;
    case How::NOTHROW: slot.block = ::operator new(size, std::nothrow); break;
    case How::ALIGNED: slot.block = ::operator new(size, ALIGN); break;
    case How::ALIGNED_ARRAY: slot.block = ::operator new[](size, ALIGN); break;
    case How::ALIGNED_NOTHROW: slot.block = ::operator new(size, ALIGN, std::nothrow); break;
    default: slot.block = ::operator new(size); break;
    }
    if (!slot.block)
        return;
    slot.size = size;
    slot.how = how;
    book(size, 1);
}

NOINLINE void drop(Slot &slot)
{
    switch (slot.how) {
    case How::ARRAY: ::operator delete[](slot.block); break;
    case How::NOTHROW: ::operator delete(slot.block, std::nothrow); break;
    case How::ALIGNED: ::operator delete(slot.block, ALIGN); break;
    case How::ALIGNED_ARRAY: ::operator delete[](slot.block, slot.size, ALIGN); break;
    case How::ALIGNED_NOTHROW: ::operator delete(slot.block, ALIGN, std::nothrow); break;
    case How::SIZED: ::operator delete(slot.block, slot.size); break;
    default: ::operator delete(slot.block); break;
    }
    slot.block = nullptr;
    book(slot.size, -1);
}

// Asks for what can't be had; deeper and deeper, so that stale stack is met again.
NOINLINE void ask_too_much(How how, std::size_t size, int depth)
{
    volatile char room[128];

    room[0] = 0;
    if (depth > 0) {
        ask_too_much(how, size, depth - 1);
        room[1] = 1;
        return;
    }
    Slot slot{};
    try {
        make(slot, how, size);
    } catch (const std::bad_alloc &) {
        __atomic_add_fetch(&caught, 1, __ATOMIC_RELAXED);
    }
    if (slot.block)
        drop(slot);
    room[2] = 2;
}

void work(long number)
{
    std::uint32_t dice = static_cast<std::uint32_t>(7 * number + turn + 1) * 2654435761u;
    Slot *mine = slots + (number + turn) % THREADS * SLOTS;

    for (int n = 0; n < TURNS; n++) {
        dice = dice * 1664525u + 1013904223u;
        Slot &slot = mine[(dice >> 10) % SLOTS];
        How how = static_cast<How>((dice >> 20) % static_cast<unsigned>(How::COUNT));
        bool quiet = how == How::NOTHROW || how == How::ALIGNED_NOTHROW;
        if (n % 50 == 0 && (quiet || !meek))
            ask_too_much(how, (std::size_t{1} << 48) - 4096 * (dice >> 24), n / 100 % 5);
        if (slot.block)
            drop(slot);
        else
            make(slot, how, (dice >> 8) % 2000 + 1);
    }
}

} // namespace

int main(int argc, char **argv)
{
    slots = static_cast<Slot *>(outside_the_heap(sizeof(Slot) * SLOTS * THREADS));
    begin_gang(THREADS, work);
    meek = argc > 2;
    if (argc > 1 && std::atol(argv[1])) {
        rlim_t most = static_cast<rlim_t>(std::atol(argv[1])) << 20;
        rlimit limit = {most, most};
        setrlimit(RLIMIT_AS, &limit);
    }
    say("ready\n");
    for (;;) {
        wait_for_line();
        turn++;
        take_turn();
        tell("{\"blocks\":%ld,\"bytes\":%ld,\"caught\":%ld}\n", blocks, bytes, caught);
    }
}
