// Much inlined code from the standard library: containers, sorting, strings, lambdas; and exceptions.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace shop {

struct Ware {
    virtual ~Ware() = default;
    virtual std::string label() const = 0;
};

template <typename T>
struct Piece : Ware {
    explicit Piece(T worth) : worth(worth) {}
    std::string label() const override { return "piece " + std::to_string(worth); }
    T worth;
};

class Store {
public:
    template <typename T>
    void add(T worth)
    {
        wares.push_back(std::make_unique<Piece<T>>(worth));
        counts[wares.back()->label()]++;
        rooms[wares.size() % 7].push_back(wares.back()->label());
    }

    std::vector<std::string> sorted() const
    {
        std::vector<std::string> labels;
        for (const auto &entry : counts)
            labels.push_back(entry.first);
        std::sort(labels.begin(), labels.end(), [](const auto &a, const auto &b) {
            return a.size() == b.size() ? a > b : a.size() < b.size();
        });
        return labels;
    }

    std::size_t fullest() const
    {
        std::size_t most = 0;
        for (const auto &room : rooms)
            most = std::max(most, room.second.size());
        return most;
    }

private:
    std::vector<std::unique_ptr<Ware>> wares;
    std::map<std::string, int> counts;
    std::unordered_map<std::size_t, std::vector<std::string>> rooms;
};

} // namespace shop

static int descend(shop::Store &store, int depth)
{
    try {
        store.add(depth);
        if (depth % 3 == 0)
            throw std::runtime_error(std::string(40, 'x') + std::to_string(depth));
    } catch (const std::runtime_error &error) {
        store.add(error.what()[40]);
    }
    return depth ? descend(store, depth - 1) + 1 : 0;
}

int main(int argc, char **argv)
{
    shop::Store store;
    std::function<int(int)> go = [&](int depth) { return descend(store, depth); };

    for (int turn = 0; turn < 60; turn++)
        go(turn % 40);
    for (int n = 0; n < argc; n++) {
        store.add(n);
        store.add(n * 1.5);
        store.add(static_cast<unsigned char>(argv[n][0]));
    }
    for (const auto &label : store.sorted())
        std::printf("%s\n", label.c_str());
    return store.fullest() < 100;
}
