// C++ with everything that unwinding tables are for: exceptions, virtual calls, containers.
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Shape {
    virtual ~Shape() = default;
    virtual std::string name(int depth) const = 0;
};

struct Square : Shape {
    std::string name(int depth) const override
    {
        std::ostringstream out;

        out << "square " << depth << " " << std::string(40, 'x');
        if (depth % 3 == 0)
            throw std::runtime_error(out.str());
        return out.str();
    }
};

static int descend(const Shape &shape, int depth, std::map<std::string, std::vector<int>> &all)
{
    try {
        all[shape.name(depth)].push_back(depth);
    } catch (const std::runtime_error &error) {
        all[error.what()].push_back(-depth);
    }
    return depth ? descend(shape, depth - 1, all) + 1 : 0;
}

int main()
{
    std::map<std::string, std::vector<int>> all;
    auto shape = std::make_unique<Square>();
    std::function<int(int)> go = [&](int depth) { return descend(*shape, depth, all); };

    for (int turn = 0; turn < 60; turn++)
        go(turn % 40);
    return all.size() > 10 ? 0 : 1;
}
