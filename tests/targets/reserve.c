// Maps room of which it uses a part, beside blocks: reserve
//
// Says "ready", then on each line maps 64 MiB by itself, writes to 40 MiB of them, allocates
// 8 MiB (so large a block that malloc maps it) and writes to all of it, and says "done".
#include "command.h"

enum { MIB = 1 << 20, MAPPED = 64 * MIB, USED = 40 * MIB, BLOCK = 8 * MIB };

int main(void)
{
    say("ready\n");
    for (;;) {
        char *room, *block;

        wait_for_line();
        room = outside_the_heap(MAPPED);
        block = malloc(BLOCK);
        // Huge pages would have more in memory than is written to.
        madvise(room, MAPPED, MADV_NOHUGEPAGE);
        memset(room, 1, USED);
        memset(block, 1, BLOCK);
        say("done\n");
    }
}
