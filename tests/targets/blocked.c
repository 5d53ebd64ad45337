/*
 * A thread in each of the system calls that signal(7) lists, one for each way in which the kernel ends
 * or repeats them, with and without a timeout where there are both. Takes commands from the Unix socket
 * PATH and answers each with a line: the calls that have returned, and how.
 *
 *     blocked PATH FOLDER
 *
 *     state     nothing
 *     ignored   each thread gets a signal that the program ignores
 *     restart   each thread gets a signal whose handler has SA_RESTART; handle: one without
 *     release   each call is given what it waits for
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "command.h"

#define LONG_S 3600
#define WAITED SIGRTMIN

struct row {
    const char *name;
    void (*prepare)(struct row *);
    long (*call)(struct row *);
    void (*release)(struct row *);
    int both; /* with and without a timeout */
    int timed;
    int fd[2];
    int word;
    struct sockaddr_un address;
    volatile int tid, handled, done, error;
};

static const char *folder;
static __thread struct row *mine;
static struct timespec later = {LONG_S, 0};
static sigset_t waited;

static struct timespec *timeout(struct row *r)
{
    return r->timed ? &later : NULL;
}

static int milliseconds(struct row *r)
{
    return r->timed ? 1000 * LONG_S : -1;
}

static void check(int is_right)
{
    if (!is_right)
        abort();
}

#define CALL(name, place, call) \
    static long call_##name(struct row *r) { place; return call; }

static void make_nothing(struct row *r) { (void)r; }
static void put(struct row *r) { check(write(r->fd[1], "12345678", 8) == 8); }
static void make_pipe(struct row *r) { check(!pipe(r->fd)); }

static void make_full_pipe(struct row *r)
{
    char bytes[1 << 16] = {0};
    int ends[2], size;

    check(!pipe(ends));
    size = fcntl(ends[1], F_SETPIPE_SZ, 4096);
    check(write(ends[1], bytes, size) == size);
    r->fd[0] = ends[1], r->fd[1] = ends[0];
}

static void drain(struct row *r)
{
    char bytes[1 << 16];

    check(read(r->fd[1], bytes, sizeof(bytes)) > 0);
}

CALL(read, char b[256], read(r->fd[0], b, sizeof(b)))
CALL(write, , write(r->fd[0], "x", 1))

static void limit(struct row *r, int fd)
{
    struct timeval time = {LONG_S, 0};

    for (int option = SO_RCVTIMEO; r->timed && option <= SO_SNDTIMEO; option++)
        check(!setsockopt(fd, SOL_SOCKET, option, &time, sizeof(time)));
}

static void make_socket(struct row *r)
{
    check(!socketpair(AF_UNIX, SOCK_STREAM, 0, r->fd));
    limit(r, r->fd[0]);
}

CALL(recv, char b, recv(r->fd[0], &b, 1, 0))
CALL(accept, , accept(r->fd[0], NULL, NULL))

static int connected_to(struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    check(!connect(fd, (void *)address, sizeof(*address)));
    return fd;
}

static void do_connect(struct row *r) { connected_to(&r->address); }

static void make_listener(struct row *r)
{
    r->address.sun_family = AF_UNIX;
    snprintf(r->address.sun_path, sizeof(r->address.sun_path), "%s/%d", folder, r->timed);
    r->fd[0] = socket(AF_UNIX, SOCK_STREAM, 0);
    limit(r, r->fd[0]);
    check(!bind(r->fd[0], (void *)&r->address, sizeof(r->address)) && !listen(r->fd[0], 0));
}

static void make_child(struct row *r)
{
    r->word = fork();
    if (!r->word) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
}

CALL(wait, , waitpid(r->word, NULL, 0))
static void kill_child(struct row *r) { kill(r->word, SIGKILL); }

CALL(futex, , syscall(SYS_futex, &r->word, FUTEX_WAIT, 0, timeout(r), NULL, 0))
static void wake(struct row *r) { syscall(SYS_futex, &r->word, FUTEX_WAKE, 1, NULL, NULL, 0); }
static long call_pause(struct row *r) { (void)r; return pause(); }
static void send_waited(struct row *r) { syscall(SYS_tgkill, getpid(), r->tid, WAITED); }
CALL(sigwait, , sigtimedwait(&waited, NULL, timeout(r)))

static void make_epoll(struct row *r)
{
    struct epoll_event event = {EPOLLIN, {0}};

    make_pipe(r);
    r->word = epoll_create1(0);
    epoll_ctl(r->word, EPOLL_CTL_ADD, r->fd[0], &event);
}

CALL(epoll, struct epoll_event e, epoll_wait(r->word, &e, 1, milliseconds(r)))
CALL(epoll_pwait, struct epoll_event e, epoll_pwait(r->word, &e, 1, milliseconds(r), &waited))

static struct pollfd readable(struct row *r) { return (struct pollfd){r->fd[0], POLLIN, 0}; }
CALL(poll, struct pollfd p = readable(r), poll(&p, 1, milliseconds(r)))
CALL(ppoll, struct pollfd p = readable(r), ppoll(&p, 1, timeout(r), NULL))

static void make_semaphore(struct row *r) { r->word = semget(IPC_PRIVATE, 1, 0600); }
static void raise_semaphore(struct row *r) { semop(r->word, &(struct sembuf){0, 1, 0}, 1); }
CALL(semop, struct sembuf b = {.sem_op = -1}, semtimedop(r->word, &b, 1, timeout(r)))

static long call_nanosleep(struct row *r) { (void)r; return nanosleep(&later, NULL); }

static long call_clock_nanosleep(struct row *r)
{
    struct timespec end;

    (void)r;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += LONG_S;
    errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
    return errno ? -1 : 0;
}

static aio_context_t context[2];

static void make_aio(struct row *r)
{
    syscall(SYS_io_setup, 1, &context[r->timed]);
    r->fd[0] = eventfd(0, 0);
}

CALL(aio, struct io_event e, syscall(SYS_io_getevents, context[r->timed], 1, 1, &e, timeout(r)))

static void do_aio(struct row *r)
{
    static struct iocb block = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLOUT};
    struct iocb *blocks[] = {&block};

    block.aio_fildes = r->fd[0];
    syscall(SYS_io_submit, context[r->timed], 1, blocks);
}

static void make_uring(struct row *r)
{
    struct io_uring_params parameters = {0};

    r->fd[0] = syscall(SYS_io_uring_setup, 1, &parameters);
}

CALL(uring, , syscall(SYS_io_uring_enter, r->fd[0], 0, 1, IORING_ENTER_GETEVENTS, NULL, 0))

#define ROW(title, prepare_it, call_it, release_it, has_both) \
    {.name = title, .prepare = prepare_it, .call = call_it, .release = release_it, .both = has_both}
static struct row rows[] = {
    ROW("read", make_pipe, call_read, put, 0),
    ROW("write", make_full_pipe, call_write, drain, 0),
    ROW("wait4", make_child, call_wait, kill_child, 0),
    ROW("recv", make_socket, call_recv, put, 1),
    ROW("accept", make_listener, call_accept, do_connect, 1),
    ROW("futex", make_nothing, call_futex, wake, 1),
    ROW("pause", make_nothing, call_pause, make_nothing, 0),
    ROW("sigwaitinfo", make_nothing, call_sigwait, send_waited, 1),
    ROW("epoll_wait", make_epoll, call_epoll, put, 1),
    ROW("epoll_pwait", make_epoll, call_epoll_pwait, put, 1),
    ROW("poll", make_pipe, call_poll, put, 1),
    ROW("ppoll", make_pipe, call_ppoll, put, 1),
    ROW("semop", make_semaphore, call_semop, raise_semaphore, 1),
    ROW("nanosleep", make_nothing, call_nanosleep, make_nothing, 0),
    ROW("clock_nanosleep", make_nothing, call_clock_nanosleep, make_nothing, 0),
    ROW("io_getevents", make_aio, call_aio, do_aio, 1),
    ROW("io_uring_enter", make_uring, call_uring, make_nothing, 0),
};
#define ROWS (sizeof(rows) / sizeof(*rows))
static struct row *all[2 * ROWS];
static int count;

static void handler(int number)
{
    (void)number;
    mine->handled++;
}

static void *thread(void *argument)
{
    struct row *r = mine = argument;
    long result;

    pthread_sigmask(SIG_BLOCK, &waited, NULL);
    r->tid = gettid();
    result = r->call(r);
    r->error = result < 0 ? errno : 0;
    r->done = 1;
    for (;;) /* so that all signals find it */
        sleep(LONG_S);
    return NULL;
}

/* Whether a thread has dealt with its signals and sleeps in its call, or behind it. */
static int sleeps(struct row *r)
{
    char path[64], line[256], state = 0;
    unsigned long long pending = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/task/%d/status", r->tid);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "SigPnd: %llx", &pending);
    }
    if (file)
        fclose(file);
    return r->tid && state == 'S' && !(pending & ~(1ULL << (WAITED - 1)));
}

static void settle(void)
{
    for (int n = 0; n < count; n++)
        while (!sleeps(all[n]))
            usleep(1000);
}

static void send_all(int number)
{
    for (int n = 0; n < count; n++)
        syscall(SYS_tgkill, getpid(), all[n]->tid, number);
}

static void obey(const char *command)
{
    int is_release = !strcmp(command, "release\n");

    send_all(!strcmp(command, "ignored\n") ? SIGURG :
             !strcmp(command, "restart\n") ? SIGUSR2 :
             !strcmp(command, "handle\n")  ? SIGUSR1 : 0);
    for (int n = 0; is_release && n < count; n++)
        all[n]->release(all[n]);
    for (int n = 0; is_release && n < count; n++)
        while (all[n]->release != make_nothing && !all[n]->done)
            usleep(1000);
    settle();
    for (int n = 0; n < count; n++)
        free(malloc(n));
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = handler};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char command[64];
    int connection;
    FILE *input;

    (void)argc;
    sigemptyset(&waited);
    sigaddset(&waited, WAITED);
    folder = argv[2];
    unshare(CLONE_NEWIPC); /* what is left of semaphores ends with the program */
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    strncpy(address.sun_path, argv[1], sizeof(address.sun_path) - 1);
    connection = connected_to(&address);
    input = fdopen(connection, "r");
    for (size_t n = 0; n < 2 * ROWS; n++) {
        struct row *r = malloc(sizeof(*r));

        *r = rows[n / 2];
        r->timed = n % 2;
        if (r->timed && !r->both)
            continue;
        r->prepare(r);
        all[count++] = r;
    }
    for (int n = 0; n < count; n++)
        begin_thread(thread, all[n]);
    settle();
    dprintf(connection, "ready %d\n", getpid());
    while (fgets(command, sizeof(command), input)) {
        obey(command);
        for (int n = 0; n < count; n++)
            if (all[n]->done)
                dprintf(connection, "%s%s=%d/%d ", all[n]->name, all[n]->timed ? "(timed)" : "",
                    all[n]->error, all[n]->handled);
        dprintf(connection, "\n");
    }
    return 0;
}
