# cython: language_level=3
"""Real-time priority for this process's threads while the target waits for them.

On a busy machine, a thread that wakes up waits for the turns of others, some milliseconds each,
and the target's thread waits with it. So whoever stops one, or makes the kernel take locks that
forks need, as it does for probes, asks for priority until it goes on. All threads of this process
get it, since each of them may have a lock that is needed, such as the interpreter's: that is why
the wait for events is compiled, and asks before it takes that lock.

The policy is SCHED_RR, with the lowest real-time priorities (sched(7)). Threads and processes that
are created meanwhile do not get it. Without the right to it (CAP_SYS_NICE), nothing changes.
"""

import os

from libc.errno cimport errno

cdef extern from *:
    """
    #include <dirent.h>
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <sys/wait.h>
    #include <unistd.h>

    #ifndef SCHED_RESET_ON_FORK
    #define SCHED_RESET_ON_FORK 0x40000000
    #endif
    #define URGENT (SCHED_RR | SCHED_RESET_ON_FORK)
    enum { HELPING = 1, OWN }; /* priorities */
    enum { MOST = 256 };

    static pthread_mutex_t urgency_lock = PTHREAD_MUTEX_INITIALIZER;
    static int urgency_users, raised_count;
    static pid_t raised[MOST];
    static __thread int waits_urgently;

    static int set_priority(pid_t thread, int priority)
    {
        struct sched_param wanted = { .sched_priority = priority };

        return sched_setscheduler(thread, priority ? URGENT : SCHED_OTHER, &wanted);
    }

    static void raise_all(void)
    {
        DIR *threads = opendir("/proc/self/task");
        struct dirent *each;

        while (threads && raised_count < MOST && (each = readdir(threads))) {
            pid_t thread = atoi(each->d_name);

            /* Any other policy was somebody else's wish, or is for good. */
            if (thread && sched_getscheduler(thread) == SCHED_OTHER && !set_priority(thread, HELPING))
                raised[raised_count++] = thread;
        }
        if (threads)
            closedir(threads);
    }

    static void lower_all(void)
    {
        while (raised_count)
            set_priority(raised[--raised_count], 0);
    }

    static void begin_urgency(void)
    {
        pthread_mutex_lock(&urgency_lock);
        if (urgency_users++ == 0)
            raise_all();
        pthread_mutex_unlock(&urgency_lock);
    }

    static void end_urgency(void)
    {
        pthread_mutex_lock(&urgency_lock);
        if (--urgency_users == 0)
            lower_all();
        pthread_mutex_unlock(&urgency_lock);
    }

    static void claim(void)
    {
        pid_t own = syscall(SYS_gettid);

        pthread_mutex_lock(&urgency_lock);
        for (int at = 0; at < raised_count; at++)
            if (raised[at] == own)
                raised[at--] = raised[--raised_count];
        set_priority(own, OWN);
        pthread_mutex_unlock(&urgency_lock);
    }

    static void renounce(void)
    {
        set_priority(syscall(SYS_gettid), 0);
    }

    static void relax(void)
    {
        int code = errno; /* of the wait */

        if (waits_urgently)
            end_urgency();
        waits_urgently = 0;
        errno = code;
    }

    static pid_t wait_urgently(int *status, int options)
    {
        pid_t found = waitpid(-1, status, options | WNOHANG);

        if (found <= 0)
            relax();
        if (found == 0 && !(options & WNOHANG))
            found = waitpid(-1, status, options);
        if (found > 0 && !waits_urgently) {
            begin_urgency();
            waits_urgently = 1;
        }
        return found;
    }
    """
    void begin_urgency() noexcept nogil
    void end_urgency() noexcept nogil
    void c_claim "claim"() noexcept nogil
    void c_renounce "renounce"() noexcept nogil
    void c_relax "relax"() noexcept nogil
    int wait_urgently(int* status, int options) noexcept nogil


class Urgency:
    """A context in which the target waits for this process, or soon does."""

    def __enter__(self):
        with nogil:
            begin_urgency()
        return self

    def __exit__(self, *_error):
        with nogil:
            end_urgency()


def claim():
    """Gives the calling thread priority until ``renounce``, for work that the target waits for."""
    with nogil:
        c_claim()


def renounce():
    """Takes the calling thread's priority: some kernels move no thread that has one to a cgroup."""
    with nogil:
        c_renounce()


def wait(int options):
    """Waits by waitpid(2) for any thread or process; urgent from its change until the next call.

    Returns (its id, status); id 0 if nothing has changed and WNOHANG is among the options. Raises
    OSError.
    """
    cdef int status = 0, found, code
    with nogil:
        found = wait_urgently(&status, options)
        code = errno
    if found < 0:
        raise OSError(code, os.strerror(code))
    return found, status


def relax():
    """Ends the urgency of the calling thread's last ``wait``."""
    with nogil:
        c_relax()
