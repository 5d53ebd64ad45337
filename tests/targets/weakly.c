// Finds functions of malloc libraries if there are any, as programs do that can do without.
//
//   weakly   says which can be looked up by name; then which one does not work of those that the
//            program knows since its start (weak symbols)
#define _GNU_SOURCE
#include <dlfcn.h>

#include "command.h"

#define WEAK __attribute__((weak))

WEAK void *mallocx(size_t size, int flags);
WEAK void *rallocx(void *block, size_t size, int flags);
WEAK size_t xallocx(void *block, size_t size, size_t extra, int flags);
WEAK void sdallocx(void *block, size_t size, int flags);

static const char *const names[] = {"_Znwm", "_ZdlPv", "__cxa_allocate_exception"};

static int is_aligned(const void *block, size_t alignment)
{
    return block && (uintptr_t)block % alignment == 0;
}

// A word for what does not work.
static const char *try(void)
{
    char *block;

    if (mallocx) {
        block = mallocx(100, 64 | 12); // of zeros, on a page of its own
        if (!is_aligned(block, 4096) || block[0] || block[99])
            return "mallocx";
        strcpy(block, "kept");
        block = rallocx(block, 100000, 0);
        if (!block || strcmp(block, "kept"))
            return "rallocx";
        if (xallocx(block, 1 << 30, 0, 0) >= 1 << 30)
            return "xallocx";
        sdallocx(block, 100000, 0);
    }
    return "none";
}

int main(void)
{
    for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
        if (dlsym(RTLD_DEFAULT, names[n]))
            printf("%s ", names[n]);
    printf("fails: %s\n", try());
    return 0;
}
