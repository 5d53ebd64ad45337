// Call chains through templates, namespaces, lambdas and operators, to operator new.
//
// operator new is the program's own, so that it has a frame pointer too.
#include <cstdlib>
#include <new>

extern "C" {
#include "command.h"
}

NOINLINE void *operator new(std::size_t size)
{
    if (void *block = std::malloc(size))
        return block;
    throw std::bad_alloc();
}

void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, std::size_t) noexcept { std::free(block); }

static void *volatile kept;

namespace shop {
template <typename T, int N>
struct Shelf {
    struct Board {
        T items[N];
    };
    NOINLINE static void *fill()
    {
        Board *board = new Board;
        kept = board;
        return board;
    }
    NOINLINE Shelf &operator+=(int times)
    {
        for (int n = 0; n < times; n++)
            kept = fill();
        return *this;
    }
};

template <typename F>
NOINLINE void *apply(F function)
{
    void *result = function();
    kept = result;
    return result;
}

template <typename T>
struct Clerk {
    struct Desk {
        char drawer[555];
    };
    NOINLINE void *operator()() const
    {
        void *desk = new Desk;
        kept = desk;
        return desk;
    }
};

} // namespace shop

int main()
{
    wait_for_go();
    shop::Shelf<unsigned char, 777> shelf;
    shelf += 2;
    shop::apply(shop::Clerk<int>());
    finish();
}
