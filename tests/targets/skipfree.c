/* Preloaded into a program: from some moment on, some frees of one call site are not made.
 *
 *   LD_PRELOAD=skipfree.so SKIP_AFTER_S=60 SKIP_ONE_IN=20 SKIP_SITE=3 SKIP_SITES=16 SKIP_LOG=FILE
 *
 * A call site is where free() was called from: its return address, relative to its module, hashed
 * into SKIP_SITES classes. Each free that is left out adds a line to the log: PID ADDRESS
 * SECONDS (CLOCK_MONOTONIC), written without allocating. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* The program's own: it may come with another malloc library. */
static void (*real_free)(void *address);
static double after_s;
static uint64_t one_in, site, sites;
static int log_fd = -1;
static _Atomic uint64_t seen;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SKIP_LOG");
    one_in = number("SKIP_ONE_IN", 20);
    site = number("SKIP_SITE", 0);
    sites = number("SKIP_SITES", 16);
    after_s = now_s() + number("SKIP_AFTER_S", 60);
    if (path != NULL)
        log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

/* The low 12 bits are the same wherever a module is mapped. */
static int is_chosen(uintptr_t caller)
{
    return (caller & 0xfff) * 2654435761u / 65536 % sites == site;
}

void free(void *address)
{
    if (real_free == NULL)
        real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (address != NULL && log_fd >= 0 && is_chosen(caller) && seen++ % one_in == one_in - 1
        && now_s() >= after_s) {
        char line[64];
        int length = snprintf(line, sizeof line, "%d %lx %.3f\n", (int)getpid(), (unsigned long)address,
                              now_s());
        if (write(log_fd, line, (size_t)length) == length)
            return;
    }
    real_free(address);
}
