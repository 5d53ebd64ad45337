"""System call filters of confined processes, in classic BPF (seccomp(2)).

A filter lists the allowed calls. It refuses all others with EPERM, so that a library can continue
without them. A few calls that only an attack makes end the process. For numbers newer than the
tables it returns ENOSYS, so that the C library falls back to older calls.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000
_LOAD, _EQUAL, _ABOVE, _ALL_BITS, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ, BPF_JMP|BPF_JGT, BPF_ALU|BPF_AND, BPF_RET."""
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data."""

_FIONBIO: Final = 0x5421
_TCGETS: Final = 0x5401
_PR_SET_NAME: Final = 15
_PR_SET_SECCOMP: Final = 22
_CLONE_PARENT_SIGCHLD: Final = 0x8000 | 17
_CLONE_THREAD: Final = 0x10000


class Confinement(Enum):
    """The purpose of a confined process."""

    READER = "reader"
    """Answers questions about open files: forks nothing, and opens nothing by name."""
    ZYGOTE = "zygote"
    """A reader that forks readers."""
    PROGRAM = "program"
    """Executes one program, which opens files by name to read them, and may have threads."""


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """A call allowed only with certain values of an argument's lower 32 bits."""

    call: str
    argument: int
    value: int
    mask: int = 0xFFFFFFFF


_READER: Final = """
    read write readv writev pread64 lseek close dup dup2 dup3 fcntl fstat newfstatat statx poll
    ppoll select recvmsg recvfrom sendmsg sendto getsockopt getsockname shutdown
    mmap munmap mremap mprotect madvise brk memfd_create
    rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall setitimer getitimer
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
    futex futex_waitv futex_wait futex_wake set_robust_list get_robust_list rseq membarrier
    uretprobe uprobe sched_yield
    sched_getaffinity getcpu getpid gettid getppid getuid geteuid getgid getegid getresuid getresgid
    getgroups getrandom uname sysinfo exit exit_group
"""
_PROGRAM: Final = """
    execve openat open access faccessat faccessat2 readlink readlinkat stat lstat getdents64 getcwd
    fadvise64 statfs fstatfs pipe pipe2 arch_prctl set_tid_address prctl
    sched_setaffinity sched_getparam sched_getscheduler getpgrp getsid epoll_create1 epoll_ctl
    epoll_wait eventfd2 mseal getxattr fgetxattr getpgid getrlimit
"""
_READER_RULES: Final = (
    ArgumentRule("ioctl", 1, _FIONBIO),
    ArgumentRule("prctl", 0, _PR_SET_NAME),
)
_RULES: Final = {
    Confinement.READER: _READER_RULES,
    Confinement.ZYGOTE: (
        *_READER_RULES,
        ArgumentRule("clone", 0, _CLONE_PARENT_SIGCHLD),
        ArgumentRule("prlimit64", 0, 0),
        ArgumentRule("prctl", 0, _PR_SET_SECCOMP),  # for the filter of readers
    ),
    Confinement.PROGRAM: (
        ArgumentRule("clone", 0, _CLONE_THREAD, _CLONE_THREAD),
        ArgumentRule("prlimit64", 0, 0),
        ArgumentRule("ioctl", 1, _TCGETS),
    ),
}
_HOSTILE: Final = """
    ptrace process_vm_readv process_vm_writev bpf init_module finit_module kexec_load
    kexec_file_load open_by_handle_at io_uring_setup
"""
"""Calls that no file reader makes, even by accident. They end the process."""


@dataclass(frozen=True, slots=True)
class SystemCallTable:
    """The numbers of a machine's system calls."""

    audit_machine: int
    """AUDIT_ARCH_… (linux/audit.h): other tables of the same processor are refused."""
    newest: int
    """The highest known number."""
    numbers: dict[str, int]


_X86_64: Final = SystemCallTable(0xC000003E, 466, {
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
    "prlimit64": 302, "open_by_handle_at": 304, "getcpu": 309, "process_vm_readv": 310,
    "process_vm_writev": 311, "finit_module": 313, "getrandom": 318, "memfd_create": 319,
    "kexec_file_load": 320, "bpf": 321, "membarrier": 324, "statx": 332, "rseq": 334,
    "uretprobe": 335, "uprobe": 336, "io_uring_setup": 425, "clone3": 435, "faccessat2": 439,
    "futex_waitv": 449, "futex_wake": 454, "futex_wait": 455, "mseal": 462,
})  # fmt: skip
"""arch/x86/entry/syscalls/syscall_64.tbl, up to Linux 6.13."""
_TABLES: Final = {"x86_64": _X86_64}


def filter_of(confinement: Confinement, machine: str = platform.machine()) -> bytes:
    """The program of a filter (struct sock_filter); empty for machines without a table."""
    table = _TABLES.get(machine)
    return b"" if table is None else b"".join(_instructions(confinement, table))


def _instructions(confinement: Confinement, table: SystemCallTable) -> Iterable[bytes]:
    numbers = table.numbers
    yield _instruction(_LOAD, _MACHINE)
    yield _instruction(_EQUAL, table.audit_machine, yes=1)
    yield _instruction(_RETURN, _KILL_PROCESS)
    yield _instruction(_LOAD, _NUMBER)
    names = _READER + (_PROGRAM if confinement is Confinement.PROGRAM else "")
    for name in names.split():
        yield from _when(numbers[name], _ALLOW)
    for rule in _RULES[confinement]:
        yield from _with_argument(numbers[rule.call], rule)
    for name in _HOSTILE.split():
        yield from _when(numbers[name], _KILL_PROCESS)
    # clone3's flags are in memory, where a filter cannot see them; the C library falls back to
    # clone(2).
    yield from _when(numbers["clone3"], _ERRNO | errno.ENOSYS)
    yield _instruction(_ABOVE, table.newest, no=1)
    yield _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    yield _instruction(_RETURN, _ERRNO | errno.EPERM)


def _when(number: int, result: int) -> Iterable[bytes]:
    yield _instruction(_EQUAL, number, no=1)
    yield _instruction(_RETURN, result)


def _with_argument(number: int, rule: ArgumentRule) -> Iterable[bytes]:
    """Allows a call with this argument; otherwise reloads the number for the next rules."""
    masks = rule.mask != 0xFFFFFFFF
    yield _instruction(_EQUAL, number, no=4 + masks)
    yield _instruction(_LOAD, _ARGUMENTS + 8 * rule.argument)
    if masks:
        yield _instruction(_ALL_BITS, rule.mask)
    yield _instruction(_EQUAL, rule.value, no=1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_LOAD, _NUMBER)


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
