// Nodes that are released by reference counts, some of them in pairs that hold each other.
//
//   cycles SECONDS [SPEED]
//
// Says what it has leaked as specimens.c does.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <memory>

extern "C" {
#include "command.h"
}

static const int STEPS_PER_S = 10;

struct Node {
    std::shared_ptr<Node> other;
    char payload[80];
};

// A pair; every twentieth points both ways and is never released.
__attribute__((noinline)) static std::shared_ptr<Node> leak_pair(bool cycle)
{
    auto first = std::make_shared<Node>();
    auto second = std::make_shared<Node>();

    first->other = second;
    if (cycle)
        second->other = first;
    return first;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    double speed = argc > 2 ? atof(argv[2]) : 1;
    // A shared_ptr's block: the node with the counts and their vtable before it.
    const long block_bytes = sizeof(Node) + 2 * sizeof(void *);
    std::deque<std::shared_ptr<Node>> recent;
    long pairs = 0, leaked = 0;
    double onset_s = 0;
    char line[128];
    timespec start;

    wait_for_go();
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long step = 1; step <= atol(argv[1]) * STEPS_PER_S; step++) {
        double now_s = double(step) / STEPS_PER_S, real_s = now_s / speed;
        timespec until = start;

        until.tv_nsec += long((real_s - long(real_s)) * 1e9);
        until.tv_sec += long(real_s) + until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
        if (step % 3)
            continue;
        bool cycle = ++pairs % 20 == 0;
        if (cycle && !leaked++)
            onset_s = now_s;
        recent.push_back(leak_pair(cycle));
        if (recent.size() > 8)
            recent.pop_front();
    }
    snprintf(line, sizeof(line), "leak_pair %ld %ld %.1f\n", 2 * leaked, 2 * leaked * block_bytes,
             onset_s);
    say(line);
    finish();
    return 0;
}
