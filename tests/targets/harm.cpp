// Throws while objects are made, which frees what they had, and for blocks that nobody can have.
#include <cstdio>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

struct Part {
    std::string text;

    explicit Part(int n) : text(100, 'x')
    {
        if (n % 3 == 0)
            throw std::runtime_error(text);
    }
};

int main()
{
    std::size_t volatile enormous = std::numeric_limits<std::ptrdiff_t>::max();
    std::vector<char> vector;
    int thrown = 0, refused = 0;

    for (int n = 0; n < 3000; n++) {
        try {
            std::vector<Part> parts;

            for (int m = 1; m <= n % 5; m++)
                parts.emplace_back(m);
        } catch (const std::runtime_error &) {
            thrown++;
        }
    }
    for (int n = 0; n < 300; n++) {
        try {
            ::operator delete(::operator new(enormous));
        } catch (const std::bad_alloc &) {
            refused++;
        }
        try {
            vector.resize(enormous);
        } catch (const std::exception &) {
            refused++;
        }
    }
    std::printf("%d thrown, %d refused\n", thrown, refused);
}
