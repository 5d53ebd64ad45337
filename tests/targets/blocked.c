/*
 * A thread in each of the system calls that signal(7) lists, with and without a timeout where there
 * are both. Takes commands from the Unix socket PATH and answers each with a line: the calls that
 * have returned, and how.
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
#include <mqueue.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
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
    char byte;
    sem_t sem;
    mqd_t queue;
    char path[256];
    struct iovec vector;
    struct mmsghdr message;
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

static struct timespec at_time(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    t.tv_sec += LONG_S;
    return t;
}

static void make_path(struct row *r)
{
    static int n;

    snprintf(r->path, sizeof(r->path), "%s/%d", folder, n++);
}

static void check(int is_right)
{
    if (!is_right)
        abort();
}

static void fill(int fd)
{
    char bytes[4096] = {0};
    int flags = fcntl(fd, F_GETFL);

    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, bytes, sizeof(bytes)) > 0 || write(fd, bytes, 1) > 0)
        ;
    fcntl(fd, F_SETFL, flags);
}

static void drain(struct row *r)
{
    char bytes[1 << 16];

    fcntl(r->fd[1], F_SETFL, O_NONBLOCK);
    while (read(r->fd[1], bytes, sizeof(bytes)) > 0)
        ;
}

static void put(struct row *r) { check(write(r->fd[1], "12345678", 8) == 8); }
static void make_pipe(struct row *r) { check(!pipe(r->fd)); }

static void make_full_pipe(struct row *r)
{
    int ends[2];

    check(!pipe(ends));
    r->fd[0] = ends[1], r->fd[1] = ends[0];
    fill(r->fd[0]);
}

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

static void make_full_socket(struct row *r) { make_socket(r); fill(r->fd[0]); }

static int connected_to(const char *path, int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    return connect(fd, (void *)&address, sizeof(address));
}

static long call_connect(struct row *r) { return connected_to(r->path, r->fd[1]); }

static void make_listener(struct row *r)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    make_path(r);
    strncpy(address.sun_path, r->path, sizeof(address.sun_path) - 1);
    r->fd[0] = socket(AF_UNIX, SOCK_STREAM, 0);
    r->fd[1] = socket(AF_UNIX, SOCK_STREAM, 0);
    limit(r, r->fd[0]);
    check(!bind(r->fd[0], (void *)&address, sizeof(address)) && !listen(r->fd[0], 0));
}

static void make_full_listener(struct row *r)
{
    make_listener(r);
    call_connect(r);
    r->fd[1] = socket(AF_UNIX, SOCK_STREAM, 0);
    limit(r, r->fd[1]);
}

static long call_read(struct row *r) { char b[256]; return read(r->fd[0], b, sizeof(b)); }
static long call_write(struct row *r) { return write(r->fd[0], "x", 1); }
static long call_readv(struct row *r) { return readv(r->fd[0], &r->vector, 1); }
static long call_recv(struct row *r) { return recv(r->fd[0], &r->byte, 1, 0); }
static long call_send(struct row *r) { return send(r->fd[0], "x", 1, 0); }
static long call_accept(struct row *r) { return accept(r->fd[0], NULL, NULL); }
static void do_accept(struct row *r) { call_accept(r); }
static void do_connect(struct row *r) { call_connect(r); }
static long call_recvmsg(struct row *r) { return recvmsg(r->fd[0], &r->message.msg_hdr, 0); }
static long call_recvmmsg(struct row *r) { return recvmmsg(r->fd[0], &r->message, 1, 0, NULL); }
static long call_sendmsg(struct row *r) { return sendmsg(r->fd[0], &r->message.msg_hdr, 0); }

static void make_inotify(struct row *r)
{
    make_path(r);
    mkdir(r->path, 0700);
    r->fd[0] = inotify_init1(0);
    inotify_add_watch(r->fd[0], r->path, IN_CREATE);
}

static void make_file_in(struct row *r)
{
    strcat(r->path, "/x");
    close(open(r->path, O_CREAT | O_WRONLY, 0600));
}

static void make_eventfd(struct row *r) { r->fd[0] = r->fd[1] = eventfd(0, 0); }
static void make_timerfd(struct row *r) { r->fd[0] = timerfd_create(CLOCK_MONOTONIC, 0); }

static void set_timer(struct row *r)
{
    struct itimerspec soon = {.it_value = {0, 1}};

    timerfd_settime(r->fd[0], 0, &soon, NULL);
}

static void make_signalfd(struct row *r) { r->fd[0] = signalfd(-1, &waited, 0); }
static void send_waited(struct row *r) { syscall(SYS_tgkill, getpid(), r->tid, WAITED); }

static void make_fifo(struct row *r) { make_path(r); mkfifo(r->path, 0600); }
static long call_open(struct row *r) { return open(r->path, O_RDONLY); }
static void open_other(struct row *r) { open(r->path, O_WRONLY | O_NONBLOCK); }

static void make_child(struct row *r)
{
    r->word = fork();
    if (!r->word) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
}

static long call_wait(struct row *r) { return waitpid(r->word, NULL, 0); }
static long call_waitid(struct row *r) { siginfo_t i; return waitid(P_PID, r->word, &i, WEXITED); }
static void kill_child(struct row *r) { kill(r->word, SIGKILL); }

static void make_locked(struct row *r)
{
    make_path(r);
    for (int n = 0; n < 2; n++)
        r->fd[n] = open(r->path, O_CREAT | O_RDWR, 0600);
}

static void make_flock(struct row *r) { make_locked(r); flock(r->fd[1], LOCK_EX); }
static long call_flock(struct row *r) { return flock(r->fd[0], LOCK_EX); }

static void make_record_lock(struct row *r)
{
    struct flock lock = {.l_type = F_WRLCK};

    make_locked(r);
    fcntl(r->fd[1], F_OFD_SETLKW, &lock);
}

static long call_fcntl(struct row *r)
{
    struct flock lock = {.l_type = F_WRLCK};

    return fcntl(r->fd[0], F_OFD_SETLKW, &lock);
}

static void close_other(struct row *r) { close(r->fd[1]); }

static void make_queue(struct row *r)
{
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};

    r->queue = mq_open("/tracelloc-blocked", O_CREAT | O_RDWR, 0600, &attributes);
    mq_unlink("/tracelloc-blocked");
}

static void make_full_queue(struct row *r) { make_queue(r); mq_send(r->queue, "x", 1, 0); }
static void queue_send(struct row *r) { mq_send(r->queue, "x", 1, 0); }
static void queue_take(struct row *r) { char b[8]; mq_receive(r->queue, b, 8, NULL); }

static long call_mq_receive(struct row *r)
{
    char b[8];
    struct timespec end = at_time(CLOCK_REALTIME);

    return r->timed ? mq_timedreceive(r->queue, b, 8, NULL, &end) :
              mq_receive(r->queue, b, 8, NULL);
}

static long call_mq_send(struct row *r)
{
    struct timespec end = at_time(CLOCK_REALTIME);

    return r->timed ? mq_timedsend(r->queue, "x", 1, 0, &end) : mq_send(r->queue, "x", 1, 0);
}

static long call_futex(struct row *r)
{
    return syscall(SYS_futex, &r->word, FUTEX_WAIT, 0, timeout(r), NULL, 0);
}

static long call_bitset(struct row *r)
{
    struct timespec end = at_time(CLOCK_MONOTONIC);

    return syscall(SYS_futex, &r->word, FUTEX_WAIT_BITSET, 0, r->timed ? &end : NULL, NULL, ~0U);
}

static void wake(struct row *r) { syscall(SYS_futex, &r->word, FUTEX_WAKE, 1, NULL, NULL, 0); }
static void make_sem(struct row *r) { sem_init(&r->sem, 0, 0); }
static void do_post(struct row *r) { sem_post(&r->sem); }

static long call_sem(struct row *r)
{
    struct timespec end = at_time(CLOCK_REALTIME);

    return r->timed ? sem_timedwait(&r->sem, &end) : sem_wait(&r->sem);
}

static void make_nothing(struct row *r) { (void)r; }
static long call_pause(struct row *r) { (void)r; return pause(); }
static long call_sigsuspend(struct row *r) { (void)r; return sigsuspend(&waited); }
static long call_sigwait(struct row *r) { return sigtimedwait(&waited, NULL, timeout(r)); }

static void make_epoll(struct row *r)
{
    struct epoll_event event = {EPOLLIN, {0}};

    make_pipe(r);
    r->word = epoll_create1(0);
    epoll_ctl(r->word, EPOLL_CTL_ADD, r->fd[0], &event);
}

static int milliseconds(struct row *r) { return r->timed ? 1000 * LONG_S : -1; }
#define CALL(name, place, call) \
    static long call_##name(struct row *r) { place; return call; }

CALL(epoll, struct epoll_event e, epoll_wait(r->word, &e, 1, milliseconds(r)))
CALL(epoll_pwait, struct epoll_event e, epoll_pwait(r->word, &e, 1, milliseconds(r), &waited))
CALL(epoll_pwait2, struct epoll_event e,
     syscall(SYS_epoll_pwait2, r->word, &e, 1, timeout(r), &waited, 8))

static struct pollfd readable(struct row *r) { return (struct pollfd){r->fd[0], POLLIN, 0}; }
CALL(poll, struct pollfd p = readable(r), poll(&p, 1, milliseconds(r)))
CALL(ppoll, struct pollfd p = readable(r), ppoll(&p, 1, timeout(r), NULL))

static fd_set only(int fd)
{
    fd_set set;

    FD_ZERO(&set);
    FD_SET(fd, &set);
    return set;
}

static long call_select(struct row *r)
{
    fd_set set = only(r->fd[0]);
    struct timeval time = {LONG_S, 0};

    return select(r->fd[0] + 1, &set, NULL, NULL, r->timed ? &time : NULL);
}

CALL(pselect, fd_set set = only(r->fd[0]),
     pselect(r->fd[0] + 1, &set, NULL, NULL, timeout(r), NULL))

struct message { long kind; char bytes[8]; };
static struct message message = {1, "1234567"};

static void make_messages(struct row *r) { r->word = msgget(IPC_PRIVATE, 0600); }
static void send_message(struct row *r) { msgsnd(r->word, &message, 8, 0); }
static void take_messages(struct row *r) { struct message m; while (msgrcv(r->word, &m, 8, 0, IPC_NOWAIT) > 0); }
static long call_msgrcv(struct row *r) { struct message m; return msgrcv(r->word, &m, 8, 0, 0); }
static long call_msgsnd(struct row *r) { return msgsnd(r->word, &message, 8, 0); }

static void make_full_messages(struct row *r)
{
    make_messages(r);
    while (!msgsnd(r->word, &message, 8, IPC_NOWAIT))
        ;
}

static void make_semaphore(struct row *r) { r->word = semget(IPC_PRIVATE, 1, 0600); }
static void raise_semaphore(struct row *r) { struct sembuf b = {0, 1, 0}; semop(r->word, &b, 1); }
static long call_semop(struct row *r) { struct sembuf b = {0, -1, 0}; return r->timed ? semtimedop(r->word, &b, 1, &later) : semop(r->word, &b, 1); }

static long call_nanosleep(struct row *r) { (void)r; return nanosleep(&later, NULL); }

static long call_clock_nanosleep(struct row *r)
{
    struct timespec end = at_time(CLOCK_MONOTONIC);

    (void)r;
    errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
    return errno ? -1 : 0;
}

static aio_context_t context[2];
static void make_aio(struct row *r) { syscall(SYS_io_setup, 1, &context[r->timed]); make_eventfd(r); }
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

static long call_uring(struct row *r)
{
    return syscall(SYS_io_uring_enter, r->fd[0], 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

#define ROW(title, prepare_it, call_it, release_it, has_both) \
    {.name = title, .prepare = prepare_it, .call = call_it, .release = release_it, .both = has_both}
static struct row rows[] = {
    ROW("read", make_pipe, call_read, put, 0),
    ROW("readv", make_pipe, call_readv, put, 0),
    ROW("write", make_full_pipe, call_write, drain, 0),
    ROW("inotify", make_inotify, call_read, make_file_in, 0),
    ROW("eventfd", make_eventfd, call_read, put, 0),
    ROW("timerfd", make_timerfd, call_read, set_timer, 0),
    ROW("signalfd", make_signalfd, call_read, send_waited, 0),
    ROW("open", make_fifo, call_open, open_other, 0),
    ROW("wait4", make_child, call_wait, kill_child, 0),
    ROW("waitid", make_child, call_waitid, kill_child, 0),
    ROW("recv", make_socket, call_recv, put, 1),
    ROW("recvmsg", make_socket, call_recvmsg, put, 1),
    ROW("recvmmsg", make_socket, call_recvmmsg, put, 1),
    ROW("send", make_full_socket, call_send, drain, 1),
    ROW("sendmsg", make_full_socket, call_sendmsg, drain, 1),
    ROW("accept", make_listener, call_accept, do_connect, 1),
    ROW("connect", make_full_listener, call_connect, do_accept, 1),
    ROW("flock", make_flock, call_flock, close_other, 0),
    ROW("fcntl", make_record_lock, call_fcntl, close_other, 0),
    ROW("mq_receive", make_queue, call_mq_receive, queue_send, 1),
    ROW("mq_send", make_full_queue, call_mq_send, queue_take, 1),
    ROW("futex", make_nothing, call_futex, wake, 1),
    ROW("futex_bitset", make_nothing, call_bitset, wake, 1),
    ROW("sem_wait", make_sem, call_sem, do_post, 1),
    ROW("pause", make_nothing, call_pause, make_nothing, 0),
    ROW("sigsuspend", make_nothing, call_sigsuspend, make_nothing, 0),
    ROW("sigwaitinfo", make_nothing, call_sigwait, send_waited, 1),
    ROW("epoll_wait", make_epoll, call_epoll, put, 1),
    ROW("epoll_pwait", make_epoll, call_epoll_pwait, put, 1),
    ROW("epoll_pwait2", make_epoll, call_epoll_pwait2, put, 1),
    ROW("poll", make_pipe, call_poll, put, 1),
    ROW("ppoll", make_pipe, call_ppoll, put, 1),
    ROW("select", make_pipe, call_select, put, 1),
    ROW("pselect", make_pipe, call_pselect, put, 1),
    ROW("msgrcv", make_messages, call_msgrcv, send_message, 0),
    ROW("msgsnd", make_full_messages, call_msgsnd, take_messages, 0),
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

    if (!strcmp(command, "ignored\n"))
        send_all(SIGURG);
    if (!strcmp(command, "restart\n"))
        send_all(SIGUSR2);
    if (!strcmp(command, "handle\n"))
        send_all(SIGUSR1);
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
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FILE *input = fdopen(connection, "r");
    char command[64];

    (void)argc;
    sigemptyset(&waited);
    sigaddset(&waited, WAITED);
    folder = argv[2];
    unshare(CLONE_NEWIPC); /* what is left of message queues and semaphores ends with the program */
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    check(!connected_to(argv[1], connection));
    for (size_t n = 0; n < 2 * ROWS; n++) {
        struct row *r = malloc(sizeof(*r));

        *r = rows[n / 2];
        r->timed = n % 2;
        r->vector = (struct iovec){&r->byte, 1};
        r->message.msg_hdr = (struct msghdr){.msg_iov = &r->vector, .msg_iovlen = 1};
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
