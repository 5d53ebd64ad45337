// Makes code at run time, tells perf of it as just-in-time compilers do, and allocates
// through it.
//
//   jit NAME [COUNT]
//
// COUNT functions (one), the first of them named NAME in /tmp/perf-PID.map. Says "ready"; at
// each line it hears it allocates 5000 bytes through each and answers "done". Leaves the file
// behind.
#include "command.h"

#define SIZE (1 << 20)

static void *kept[64];
static int count;

__attribute__((noinline)) static void keep(void)
{
    kept[count++ % 64] = malloc(5000);
}

int main(int argc, char **argv)
{
#ifdef __aarch64__
    // stp x29, x30, [sp, #-16]!; mov x29, sp; blr x0; ldp x29, x30, [sp], #16; ret
    static const unsigned code[] = {0xa9bf7bfd, 0x910003fd, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0};
#else
    // push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
#endif
    unsigned char *page = outside_the_heap(SIZE);
    int functions = argc > 2 ? atoi(argv[2]) : 1;
    char name[64], line[64];
    FILE *map;

    if (argc < 2 || functions >= SIZE / 256)
        return 1;
    for (int n = 1; n <= functions; n++)
        memcpy(page + 256 * n, code, sizeof(code));
    __builtin___clear_cache((char *)page, (char *)page + SIZE);
    mprotect(page, SIZE, PROT_READ | PROT_EXEC);
    snprintf(name, sizeof(name), "/tmp/perf-%d.map", (int)getpid());
    map = fopen(name, "w");
    if (!map)
        return 1;
    fprintf(map, "%lx %lx %s\n", (unsigned long)(page + 256), (unsigned long)sizeof(code), argv[1]);
    fclose(map);
    say("ready\n");
    for (;;) {
        hear(line, sizeof(line));
        for (int n = 1; n <= functions; n++)
            ((void (*)(void (*)(void)))(page + 256 * n))(keep);
        say("done\n");
    }
}
