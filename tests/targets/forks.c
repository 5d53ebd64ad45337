// Makes one child after the other for as long as it is told to.
//
//   forks LIVE [PROGRAM]
//
// Has LIVE blocks outstanding by then. Children execute PROGRAM, or end at once. Reads
// milliseconds, answers with the children made, the nanoseconds that they took, and the
// median of the nanoseconds that the calls of fork took.
#include "command.h"

enum { MOST = 1 << 20 };

static long long took_ns[MOST];

static int compare(const void *left, const void *right)
{
    long long a = *(const long long *)left, b = *(const long long *)right;

    return (a > b) - (a < b);
}

static void make_child(const char *program, long long *in_fork_ns)
{
    long long begin_ns = now_ns();
    pid_t child = fork();

    if (!child) {
        if (program)
            execl(program, program, (char *)NULL);
        _exit(program ? 127 : 0);
    }
    *in_fork_ns = now_ns() - begin_ns;
    wait_for(child);
}

int main(int argc, char **argv)
{
    long live = argc > 1 ? atol(argv[1]) : 0;
    const char *program = argc > 2 ? argv[2] : NULL;
    char line[64];

    say("ready\n");
    for (;;) {
        long long begin_ns, end_ns;
        int made = 0;

        hear(line, sizeof(line));
        for (; live; live--)
            if (!malloc((size_t)(16 + live % 512)))
                return 3;
        begin_ns = now_ns();
        end_ns = begin_ns + atoll(line) * 1000000;
        do
            make_child(program, &took_ns[made]);
        while (++made < MOST && now_ns() < end_ns);
        end_ns = now_ns();
        qsort(took_ns, (size_t)made, sizeof(*took_ns), compare);
        tell("%d %lld %lld\n", made, end_ns - begin_ns, took_ns[made / 2]);
    }
}
