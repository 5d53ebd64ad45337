// Allocates blocks of known C++ types, then waits. Arguments: how many of each.
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "command.h"

namespace shop {
struct Item {
    long price[5];
};
struct Session {
    virtual ~Session() {}
    long id = 7;
};
struct Plain {
    long id;
};
} // namespace shop

static std::map<int, shop::Item> tree;
static std::unordered_map<int, shop::Item> hash;
static std::list<shop::Item> row;
static std::vector<shop::Item> items;
static std::vector<std::string> words;
static std::vector<std::unique_ptr<shop::Item>> owned;
static std::vector<std::shared_ptr<shop::Item>> shared;
static shop::Session **sessions;
static shop::Plain **plain;

NOINLINE static void fill(int count) {
    items.reserve(count);
    words.reserve(count);
    owned.reserve(count);
    shared.reserve(count);
    for (int i = 0; i < count; ++i) {
        tree[i].price[0] = i;
        hash[i].price[0] = i;
        row.push_back({});
        words.emplace_back(100, 'w');
        owned.push_back(std::make_unique<shop::Item>());
        shared.push_back(std::make_shared<shop::Item>());
        sessions[i] = new shop::Session;
        plain[i] = new shop::Plain;
    }
}

int main(int, char **argv) {
    int count = atoi(argv[1]);
    sessions = (shop::Session **)calloc(count, sizeof(void *));
    plain = (shop::Plain **)calloc(count, sizeof(void *));
    wait_for_go();
    fill(count);
    finish();
    return 0;
}
