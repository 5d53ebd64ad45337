// Maps that only grow, one by one global, and beside it what is lost: as many steps as it is told.
#include <map>

#include "command.h"
#include <cstdlib>

namespace app {
struct Session {
    virtual ~Session() {}
    char rest[992] = {};
};
std::map<int, Session *> g_sessions;
}

NOINLINE static app::Session *open_session()
{
    return new app::Session;
}

NOINLINE static void lose()
{
    char *volatile lost = static_cast<char *>(malloc(3000));
    lost = nullptr;
    (void)lost;
}

// Commands: "keep N" adds N sessions, "lose N" loses N blocks.
int main()
{
    char line[64];
    int number = 0;

    wait_for_go();
    for (;;) {
        hear(line, sizeof(line));
        for (int n = atoi(line + 5); n > 0; n--) {
            if (*line == 'k')
                app::g_sessions[number++] = open_session();
            else
                lose();
        }
        say("done\n");
    }
}
