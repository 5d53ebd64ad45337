// Writes what it likes into the memory that libtracelloc.so shares with the profiler.
//
//   liar WAY
//
// Compiled with the library's own headers. Says "ready", waits until somebody wants events, and goes
// on for ever:
//   sealed      nothing: the shared file can't be written to
//   leased      nothing: it holds a lease on the shared file, so that others have to wait for it
//   zero        blocks at address 0
//   huge        blocks of nearly all the address space
//   deep        stacks of 65,535 frames
//   misses      stacks to be finished, as many as there is room for, with all of their memory
//   noise       random bytes everywhere
//   unwritten   reserves events, and never writes them
//   endless     blocks, as fast as it can, also when nobody wants them any more
//   leaving     says that it waits for probes, and does not
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/types.h>
#include <signal.h>
#include <x86intrin.h>

#include "preloaded/area.h"

#include "command.h"

#define RING 5
#define SLOTS (1ul << PRELOAD_SLOTS_LOG2(RING))

static uint8_t *area;
static uint64_t dice = 88172645463325252u;

static uint64_t draw(void)
{
    return next_random(&dice);
}

static struct preload_control *control(void)
{
    return (struct preload_control *)area;
}

static struct preload_ring *ring_at(unsigned n)
{
    return (struct preload_ring *)(area + PRELOAD_AT_RINGS + n * PRELOAD_RING_BYTES);
}

// The place in the shared file that is mapped; NULL if there is none.
static void *find(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[600];
    unsigned long start = 0;

    while (maps && fgets(line, sizeof(line), maps))
        if (strstr(line, "/memfd:tracelloc-preload"))
            sscanf(line, "%lx", &start);
    if (maps)
        fclose(maps);
    return (void *)start;
}

// A file of the right name, size and beginning, with other seals or a lease.
static void make_file(int is_sealed)
{
    int file = memfd_create("tracelloc-preload", MFD_ALLOW_SEALING);
    char path[64];
    struct preload_control *page;

    if (ftruncate(file, PRELOAD_BYTES))
        _exit(3);
    page = mmap(NULL, PRELOAD_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    page->magic = PRELOAD_MAGIC;
    page->pid = (uint32_t)getpid();
    munmap(page, PRELOAD_PAGE);
    munmap(find(), PRELOAD_PAGE);
    if (is_sealed) {
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
        mmap(NULL, PRELOAD_PAGE, PROT_READ, MAP_SHARED, file, 0);
        return;
    }
    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    int reading = open(path, O_RDONLY);

    close(file);
    mmap(NULL, PRELOAD_PAGE, PROT_READ, MAP_PRIVATE, reading, 0);
    signal(SIGIO, SIG_IGN);
    if (fcntl(reading, F_SETLEASE, F_RDLCK))
        _exit(3);
}

static void report(uint64_t address, uint64_t size, uint64_t stack_id)
{
    volatile uint64_t *reserved = (uint64_t *)&ring_at(RING)->reserved;
    uint64_t slot = *reserved;
    struct event *event = (struct event *)(area + PRELOAD_SLOTS_AT(RING));

    while (*reserved - *(volatile uint64_t *)&ring_at(RING)->taken >= SLOTS - 64)
        usleep(100);
    *reserved = slot + 1;
    event += slot % SLOTS;
    event->time_ns = __rdtsc();
    event->address = address;
    event->stack_id = stack_id;
    event->tid = (uint32_t)getpid();
    __atomic_store_n((uint64_t *)&event->size_tag,
                     size | (uint64_t)EVENT_ALLOC << EVENT_SIZE_BITS |
                         (slot / SLOTS + 1) << EVENT_LAP_BIT,
                     __ATOMIC_RELEASE);
}

static void send(uint64_t kind, const void *content, uint64_t size)
{
    volatile uint64_t *reserved = (uint64_t *)&control()->records_reserved;
    uint64_t whole = (size + 15) & ~7ul, from = *reserved, at = from % PRELOAD_RECORD_BYTES;
    uint64_t padding = at + whole > PRELOAD_RECORD_BYTES ? PRELOAD_RECORD_BYTES - at : 0;
    uint8_t *ring = area + PRELOAD_AT_RECORDS;

    while (from + padding + whole - *(volatile uint64_t *)&control()->records_taken >
           PRELOAD_RECORD_BYTES)
        usleep(100);
    if (padding)
        *(volatile uint64_t *)(ring + at) =
            padding | (uint64_t)PRELOAD_RECORD_PAD << PRELOAD_RECORD_KIND_SHIFT;
    at = (from + padding) % PRELOAD_RECORD_BYTES;
    memcpy(ring + at + 8, content, size);
    __atomic_store_n((uint64_t *)(ring + at), whole | kind << PRELOAD_RECORD_KIND_SHIFT,
                     __ATOMIC_RELEASE);
    *reserved = from + padding + whole;
}

static void send_miss(void)
{
    static uint8_t content[sizeof(struct miss) + PRELOAD_MISS_PAGES * PRELOAD_PAGE];
    struct miss *miss = (struct miss *)content;

    miss->stack_id = draw() | 1;
    miss->missing = draw() >> 17;
    miss->stack_address = 0x7f0000000000;
    miss->stack_pages = (1u << PRELOAD_MISS_PAGES) - 1;
    for (int n = 0; n < MISS_REGISTERS; n++)
        miss->registers[n] = draw() >> 17;
    miss->registers[MISS_SP] = miss->stack_address + 64;
    send(PRELOAD_RECORD_MISS, content, sizeof(content));
}

static void send_deep(void)
{
    static struct {
        struct stack head;
        uint64_t frames[65535];
    } stack;

    stack.head.stack_id = draw() | 1;
    stack.head.n_frames = 65535;
    send(PRELOAD_RECORD_STACK, &stack, sizeof(stack.head) + sizeof(stack.frames));
}

static void make_noise(void)
{
    uint64_t *words = (uint64_t *)(area + PRELOAD_AT_RECORDS);

    area[draw() % 5000] = (uint8_t)draw();
    words[draw() % (PRELOAD_RECORD_BYTES / 8)] = draw();
    ((uint64_t *)ring_at(draw() % PRELOAD_RINGS))[draw() % 40] = draw() >> draw() % 64;
    ((uint64_t *)(area + PRELOAD_AT_SLOTS))[draw() % ((PRELOAD_SLOTS_AT(8) - PRELOAD_AT_SLOTS) / 8)] = draw();
}

static void lie(const char *way, uint64_t n)
{
    if (!strcmp(way, "zero"))
        report(0, 16, 0);
    else if (!strcmp(way, "huge"))
        report(0x10000 + 16 * n, (1ul << 47) - 0x100000000, 0);
    else if (!strcmp(way, "endless"))
        report(0x10000 + 16 * (n % 100000), 16, 1 + n % 10);
    else if (!strcmp(way, "deep"))
        send_deep();
    else if (!strcmp(way, "misses"))
        send_miss();
    else if (!strcmp(way, "noise"))
        make_noise();
    else if (!strcmp(way, "unwritten"))
        ring_at(RING)->reserved++, usleep(1000);
    else if (!strcmp(way, "leaving"))
        control()->leaving = 1, control()->why_not = 77, usleep(1000);
    else
        free(malloc(50)), usleep(1000);
}

int main(int argc, char **argv)
{
    const char *way = argv[argc - 1];

    free(malloc(100));
    if (!strcmp(way, "sealed") || !strcmp(way, "leased")) {
        make_file(!strcmp(way, "sealed"));
    } else {
        area = mremap(find(), 0, PRELOAD_BYTES, MREMAP_MAYMOVE);
        if (area == MAP_FAILED)
            return 3;
    }
    say("ready\n");
    while (area && !*(volatile uint32_t *)&control()->holder)
        usleep(1000);
    for (unsigned n = 1; area && n <= RING; n++)
        if (!ring_at(n)->owner)
            ring_at(n)->owner = (uint32_t)getpid();
    for (uint64_t n = 0;; n++)
        lie(way, n);
}
