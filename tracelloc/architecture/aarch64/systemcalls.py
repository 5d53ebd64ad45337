"""System calls of 64-bit Arm: include/uapi/asm-generic/unistd.h, up to Linux 6.13.

It has none of the calls that newer ones replace, such as open, stat, poll and pipe.
"""

from __future__ import annotations

from typing import Final

from tracelloc.architecture.description import SystemCallTable

_NUMBERS: Final = {
    "getxattr": 8, "fgetxattr": 10, "getcwd": 17, "eventfd2": 19, "epoll_create1": 20,
    "epoll_ctl": 21, "dup": 23, "dup3": 24, "fcntl": 25, "ioctl": 29, "statfs": 43, "fstatfs": 44,
    "faccessat": 48, "openat": 56, "close": 57, "pipe2": 59, "getdents64": 61, "lseek": 62,
    "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "ppoll": 73,
    "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94,
    "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "get_robust_list": 100,
    "nanosleep": 101, "getitimer": 102, "setitimer": 103, "kexec_load": 104, "init_module": 105,
    "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "ptrace": 117,
    "sched_getscheduler": 120, "sched_getparam": 121, "sched_setaffinity": 122,
    "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132,
    "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "getresuid": 148,
    "getresgid": 150, "times": 153, "getpgid": 155, "getsid": 156, "getgroups": 158, "uname": 160,
    "getrlimit": 163, "getrusage": 165, "prctl": 167, "getcpu": 168, "gettimeofday": 169,
    "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177,
    "gettid": 178, "sysinfo": 179, "getsockname": 204, "sendto": 206, "recvfrom": 207,
    "getsockopt": 209, "shutdown": 210, "sendmsg": 211, "recvmsg": 212, "brk": 214, "munmap": 215,
    "mremap": 216, "clone": 220, "execve": 221, "mmap": 222, "fadvise64": 223, "mprotect": 226,
    "madvise": 233, "perf_event_open": 241, "prlimit64": 261, "open_by_handle_at": 265,
    "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "getrandom": 278,
    "memfd_create": 279, "bpf": 280, "membarrier": 283, "statx": 291, "rseq": 293,
    "kexec_file_load": 294, "io_uring_setup": 425, "clone3": 435, "faccessat2": 439,
    "futex_waitv": 449, "futex_wake": 454, "futex_wait": 455, "mseal": 462,
}  # fmt: skip

SYSTEM_CALLS: Final = SystemCallTable(0xC00000B7, 466, _NUMBERS, range(295, 403))
