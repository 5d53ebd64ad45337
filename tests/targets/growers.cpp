// Programs that leak, grow or only look like it, one for each mode: ``growers MODE``.
// "ready", then each 5 s a line: seconds, and the bytes that the program has lost, or will keep for ever.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#define NOINLINE __attribute__((noinline))

static double gone_bytes;
static void *volatile sink;

static double now()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

static void pause_for(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

NOINLINE static void *make(size_t size)
{
    void *block = malloc(size);
    memset(block, 1, size < 64 ? size : 64);
    return block;
}

static void lose(size_t size)
{
    sink = make(size);
    sink = nullptr;
    gone_bytes += static_cast<double>(size);
}

// Leaks

struct Entry {
    void *block;
    size_t size;
};

NOINLINE static void evict() // one in twenty is not freed
{
    static std::unordered_map<int, Entry> cache;
    size_t size = 200 + rand() % 200;
    Entry &entry = cache[rand() % 3000];
    if (entry.block && rand() % 20)
        free(entry.block);
    else if (entry.block)
        gone_bytes += static_cast<double>(entry.size);
    entry = {make(size), size};
}

NOINLINE static void lose_and_keep(int step) // as many of each, among short-lived ones
{
    static std::vector<void *> kept;
    void *block = make(300);
    if (step % 5 == 0)
        kept.push_back(block);
    else if (step % 5 == 1)
        gone_bytes += 300;
    else
        free(block);
}

struct Node {
    std::string key;
    std::vector<Node *> children;
};

NOINLINE static Node *build(int depth)
{
    auto *node = new Node{"a key that takes a block " + std::to_string(depth), {}};
    node->children.reserve(2);
    for (int child = 0; depth && child < 2; child++)
        node->children.push_back(build(depth - 1));
    return node;
}

static void drop(Node *node)
{
    for (Node *child : node->children)
        drop(child);
    delete node;
}

NOINLINE static void parse(bool loses)
{
    Node *tree = build(3);
    if (loses)
        gone_bytes += 15 * (sizeof(Node) + 31 + 16);
    else
        drop(tree);
}

NOINLINE static void reload() // all at once
{
    for (int n = 0; n < 300; n++)
        lose(100 + rand() % 100);
}

NOINLINE static void serve(bool fails)
{
    void *request = make(500);
    pause_for(.0005);
    if (fails)
        gone_bytes += 500;
    else
        free(request);
}

NOINLINE static void work() { lose(900); }

struct Half {
    std::shared_ptr<Half> other;
    char data[100];
};

NOINLINE static void pair_up()
{
    auto one = std::make_shared<Half>(), two = std::make_shared<Half>();
    one->other = two;
    two->other = one;
    gone_bytes += 2 * (sizeof(Half) + 16);
}

// What is kept for ever

struct Event {
    char data[120];
    Event *next;
};

NOINLINE static void record()
{
    static Event *events;
    auto *event = static_cast<Event *>(make(sizeof(Event)));
    event->next = events;
    events = event;
    gone_bytes += sizeof(Event);
}

NOINLINE static void note_key(int step)
{
    static std::unordered_map<std::string, std::string> seen;
    seen["a-key-that-is-unique-" + std::to_string(1000000 + step)] = std::string(60, 'v');
    gone_bytes += 80 + 31 + 61;
}

NOINLINE static void write_line()
{
    static std::string transcript;
    transcript += std::string(1000, 'x');
    gone_bytes += 1000;
}

struct Job {
    std::string title;
    std::vector<std::string> options;
    Job *next;
};

NOINLINE static void add_job()
{
    static Job *history;
    auto *job = new Job{"a title of a job that is long", {}, history};
    job->options.reserve(4);
    for (int n = 0; n < 4; n++)
        job->options.push_back("an option that is long enough");
    history = job;
    gone_bytes += sizeof(Job) + 30 + 4 * sizeof(std::string) + 4 * 30;
}

// What is no leak

NOINLINE static void use_pool()
{
    static std::vector<void *> pool;
    static void *taken[3000];
    void *&one = taken[rand() % 3000];
    if (one) {
        pool.push_back(one);
        one = nullptr;
    } else if (pool.empty()) {
        one = make(200);
    } else {
        one = pool.back();
        pool.pop_back();
    }
}

struct Session {
    std::string token;
    double until;
};

NOINLINE static void log_in()
{
    static std::map<int, Session> sessions;
    static double swept;
    sessions[rand()] = {std::string(120, 't'), now() + 60};
    if (now() - swept < 30)
        return;
    swept = now();
    for (auto at = sessions.begin(); at != sessions.end();)
        at = at->second.until < now() ? sessions.erase(at) : std::next(at);
}

NOINLINE static void log_line()
{
    static std::deque<std::string> ring;
    ring.emplace_back(20 + rand() % 300, 'l');
    if (ring.size() > 5000)
        ring.pop_front();
}

NOINLINE static void batch(int step)
{
    static std::vector<void *> blocks;
    if (step % 6000 < 3000) {
        blocks.push_back(make(2000));
        return;
    }
    for (void *block : blocks)
        free(block);
    blocks.clear();
}

NOINLINE static void fill_cache() // full at the attach
{
    static std::unordered_map<int, std::string> cache;
    cache[rand() % 4000] = std::string(100 + rand() % 400, 'c');
}

static bool step_of(const std::string &mode, int step, double since)
{
    if (mode == "evict") evict(), pause_for(.003);
    else if (mode == "mixed") lose_and_keep(step), pause_for(.005);
    else if (mode == "stops") since < 100 && step % 3 == 0 ? lose(150) : free(make(150)), pause_for(.004);
    else if (mode == "tree") parse(step % 4 == 0), pause_for(.05);
    else if (mode == "bursts") step % 50 ? free(make(70)) : reload(), pause_for(.1);
    else if (mode == "errors") serve(rand() % 200 == 0);
    else if (mode == "threads") std::thread(work).join(), pause_for(.05);
    else if (mode == "cycle") pair_up(), pause_for(.02);
    else if (mode == "large") step % 60 ? free(make(99)) : lose(300000), pause_for(.1);
    else if (mode == "rare") step % 500 ? free(make(300)) : lose(300), pause_for(.005);
    else if (mode == "list") record(), pause_for(.01);
    else if (mode == "keys") note_key(step), pause_for(.01);
    else if (mode == "string") write_line(), pause_for(.02);
    else if (mode == "jobs") add_job(), pause_for(.02);
    else if (mode == "pool") use_pool(), pause_for(.002);
    else if (mode == "sessions") log_in(), pause_for(.01 + rand() % 20 / 1e3);
    else if (mode == "ring") log_line(), pause_for(.004);
    else if (mode == "batch") batch(step), pause_for(.01);
    else if (mode == "cache") fill_cache(), pause_for(.002);
    else if (mode == "idle") pause_for(.5);
    else return false;
    return true;
}

int main(int, char **arguments)
{
    double began = now(), said = began;

    srand(7);
    if (!strcmp(arguments[1], "cache"))
        for (int n = 0; n < 40000; n++)
            fill_cache();
    puts("ready");
    fflush(stdout);
    for (int step = 0; step_of(arguments[1], step, now() - began); step++) {
        if (now() - said < 5)
            continue;
        said = now();
        printf("%.2f %.0f\n", said, gone_bytes);
        fflush(stdout);
    }
    return 2;
}
