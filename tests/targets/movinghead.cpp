// A list that grows at its head all the time, which is in a variable, or where an argument says; or a
// map into which sessions are inserted ("map"), whose nodes point to their parents, too.
#include <map>

#include "command.h"

struct node {
    node *next;
    char data[56];
};

static node *volatile head;
static thread_local node *volatile own_head;
static node *volatile *volatile owner;
static void *volatile *volatile stale;

struct Session {
    char data[160];
};

static std::map<int, Session *> sessions;

// A variable points to freed memory, in which is the only pointer to a block.
static NOINLINE void lose()
{
    stale = static_cast<void *volatile *>(malloc(500));
    stale[3] = calloc(1, 333);
    free((void *)stale);
}

int main(int argc, char **argv)
{
    const char *where = argc > 1 ? argv[1] : "";
    bool is_map = !strcmp(where, "map");
    node *volatile *at = strcmp(where, "thread") ? &head : &own_head;
    int many = is_map ? 50000 : 20000;

    if (!strcmp(where, "block")) {
        owner = static_cast<node *volatile *>(calloc(1, 900));
        at = owner;
    }
    lose();
    scrub();
    for (int n = 0;; n++) {
        if (is_map) {
            sessions[n] = new Session();
        } else {
            node *one = static_cast<node *>(calloc(1, sizeof(*one)));

            one->next = *at;
            *at = one;
        }
        if (n == many)
            say("ready\n");
        // The heap grows by 132 KiB several times while a map is searched.
        if (n > many && (!is_map || n % 8 == 0))
            usleep(500);
    }
}
