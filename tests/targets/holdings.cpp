// Blocks that are held in all ways that `tracelloc holders` tells apart. Nothing is freed before,
// so no block has stale pointers in it. Ends with its input.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#define NOINLINE __attribute__((noinline))

namespace app {
template <int Size> struct Object {
    virtual ~Object() {}
    char rest[Size - 8] = {};
};
struct Session : Object<1000> {};
struct Value : Object<600> {};
struct Shape : Object<88> {};
struct Tile : Object<120> {};
struct Twin : Object<152> {};
struct Joint : Object<184> {};
struct Owner {
    std::vector<Joint *> some, all;
};

std::map<int, Session *> g_sessions;
std::unordered_map<int, Value *> g_cache;
std::vector<Shape *> g_shapes;
std::vector<Twin *> g_left, g_right;
std::list<int> g_numbers;
Owner *g_owner;
thread_local std::vector<Tile *> t_tiles;
}

struct node {
    node *next;
    char rest[200];
};
struct entry {
    char *value;
    char rest[256];
};

__attribute__((used)) static node *nodes;
__attribute__((used)) static entry *table[512];
static pthread_barrier_t barrier;

NOINLINE static node *list(int length, size_t size)
{
    node *first = nullptr;
    for (int n = 0; n < length; n++) {
        node *one = (node *)calloc(1, size);
        one->next = first;
        first = one;
    }
    return first;
}

NOINLINE static void clear()
{
    char room[1 << 14] = {};
    asm volatile("" ::"r"(room) : "memory");
}

static void *hold_on_stack(void *)
{
    node *volatile first = list(700, 376);
    clear();
    pthread_barrier_wait(&barrier);
    pause();
    return first;
}

static void *hold_tiles(void *)
{
    app::t_tiles.reserve(100);
    for (int n = 0; n < 100; n++)
        app::t_tiles.push_back(new app::Tile);
    clear();
    pthread_barrier_wait(&barrier);
    pause();
    return nullptr;
}

NOINLINE static void fill()
{
    for (int n = 0; n < 3000; n++)
        app::g_sessions[n * 7919 % 3000] = new app::Session;
    app::g_cache.reserve(500);
    for (int n = 0; n < 500; n++)
        app::g_cache[n] = new app::Value;
    app::g_shapes.reserve(300);
    for (int n = 0; n < 300; n++)
        app::g_shapes.push_back(new app::Shape);
    app::g_left.reserve(400);
    app::g_right.reserve(400);
    for (int n = 0; n < 400; n++) {
        app::g_left.push_back(new app::Twin);
        app::g_right.push_back(app::g_left[n]);
    }
    for (int n = 0; n < 1000; n++)
        app::g_numbers.push_back(n);
    app::g_owner = new app::Owner;
    app::g_owner->some.reserve(150);
    app::g_owner->all.reserve(250);
    for (int n = 0; n < 250; n++) {
        app::g_owner->all.push_back(new app::Joint);
        if (n < 150)
            app::g_owner->some.push_back(app::g_owner->all[n]);
    }
    nodes = list(1000, sizeof(node));
    for (int n = 0; n < 512; n++) {
        table[n] = (entry *)calloc(1, sizeof(entry));
        table[n]->value = (char *)calloc(1, 424);
    }
}

int main()
{
    pthread_t threads[3];
    fill();
    clear();
    pthread_barrier_init(&barrier, nullptr, 4);
    for (int n = 0; n < 3; n++) {
        pthread_create(&threads[n], nullptr, n ? hold_tiles : hold_on_stack, nullptr);
        pthread_setname_np(threads[n], n ? "tiler" : "stacker");
    }
    pthread_barrier_wait(&barrier);
    clear();
    puts("ready");
    fflush(stdout);
    char line[64];
    while (read(0, line, sizeof line) > 0) {
    }
}
