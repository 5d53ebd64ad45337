"""System calls of x86-64: arch/x86/entry/syscalls/syscall_64.tbl, up to Linux 6.13."""

from __future__ import annotations

from typing import Final

from tracelloc.architecture.description import SystemCallTable

_NUMBERS: Final = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7,
    "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13,
    "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19,
    "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25,
    "madvise": 28, "dup": 32, "dup2": 33, "nanosleep": 35, "getitimer": 36, "setitimer": 38,
    "getpid": 39, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48,
    "getsockname": 51, "getsockopt": 55, "clone": 56, "execve": 59, "exit": 60, "uname": 63,
    "fcntl": 72, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "ptrace": 101, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111, "getgroups": 115,
    "getresuid": 118, "getresgid": 120, "getpgid": 121, "getsid": 124, "sigaltstack": 131,
    "statfs": 137, "fstatfs": 138, "sched_getparam": 143, "sched_getscheduler": 145, "prctl": 157,
    "arch_prctl": 158, "init_module": 175, "gettid": 186, "getxattr": 191, "fgetxattr": 193,
    "time": 201, "futex": 202, "sched_setaffinity": 203, "sched_getaffinity": 204,
    "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "epoll_wait": 232, "epoll_ctl": 233, "kexec_load": 246, "openat": 257, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "ppoll": 271, "set_robust_list": 273,
    "get_robust_list": 274, "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293,
    "perf_event_open": 298,
    "prlimit64": 302, "open_by_handle_at": 304, "getcpu": 309, "process_vm_readv": 310,
    "process_vm_writev": 311, "finit_module": 313, "getrandom": 318, "memfd_create": 319,
    "kexec_file_load": 320, "bpf": 321, "membarrier": 324, "statx": 332, "rseq": 334,
    "uretprobe": 335, "uprobe": 336, "io_uring_setup": 425, "clone3": 435, "faccessat2": 439,
    "futex_waitv": 449, "futex_wake": 454, "futex_wait": 455, "mseal": 462,
}  # fmt: skip

SYSTEM_CALLS: Final = SystemCallTable(0xC000003E, 466, _NUMBERS, range(335, 387))
