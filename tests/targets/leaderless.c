// A program whose main thread may end while its other threads go on.
//
// leaderless [gone]: with "gone", it ends before anything else. Then, per line:
//   leave: it ends now
//   keep N: allocates N blocks of 48 bytes, in keep()
//   drop: frees these
//   pass: hands over to a new thread and ends, so that only the new one is left; answers "ready"
//   load PATH: opens a library, whose malloc and free serve from here on
//   exec PATH: becomes that program
//   fork: makes a child that waits to be killed, and answers with its PID
#include "command.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>

enum { MOST = 100000 };

static void *blocks[MOST];
static long kept;
static void *(*allocate)(size_t) = malloc;
static void (*release)(void *) = free;
static sem_t may_leave;

// Waits until a thread is gone, or is a zombie.
static void wait_for_end(int thread_id)
{
    char path[64], text[256];
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread_id);
    for (;;) {
        size_t length;

        file = fopen(path, "r");
        if (!file)
            return;
        length = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[length] = 0;
        if (!length || strstr(text, ") Z "))
            return;
        usleep(1000);
    }
}

__attribute__((noinline)) void keep(long count)
{
    while (count--)
        blocks[kept++] = allocate(48);
}

__attribute__((noinline)) void drop(void)
{
    while (kept)
        release(blocks[--kept]);
}

static void *obey(void *predecessor)
{
    char line[256], answer[64];

    if (predecessor)
        wait_for_end((int)(long)predecessor);
    say("ready\n");
    for (;;) {
        strcpy(answer, "done\n");
        hear(line, sizeof(line));
        if (!strcmp(line, "leave")) {
            sem_post(&may_leave);
            wait_for_end(getpid());
        } else if (!strncmp(line, "keep ", 5)) {
            keep(atol(line + 5));
        } else if (!strcmp(line, "drop")) {
            drop();
        } else if (!strcmp(line, "pass")) {
            begin_thread(obey, (void *)syscall(SYS_gettid));
            return NULL;
        } else if (!strncmp(line, "load ", 5)) {
            void *library = dlopen(line + 5, RTLD_NOW);

            if (!library)
                return NULL;
            allocate = (void *(*)(size_t))dlsym(library, "malloc");
            release = (void (*)(void *))dlsym(library, "free");
        } else if (!strncmp(line, "exec ", 5)) {
            execl(line + 5, line + 5, (char *)NULL);
        } else if (!strcmp(line, "fork")) {
            int child = fork();

            if (!child)
                for (;;)
                    pause();
            snprintf(answer, sizeof(answer), "%d\n", child);
        }
        say(answer);
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    sem_init(&may_leave, 0, argc > 1);
    begin_thread(obey, (void *)(long)(argc > 1 ? getpid() : 0));
    sem_wait(&may_leave);
    pthread_exit(NULL);
}
