"""System call filters of confined processes, in classic BPF (seccomp(2)).

A filter lists the allowed calls. It refuses all others with EPERM, so that a library can continue
without them. A few calls that only an attack makes end the process. For numbers newer than the
tables it returns ENOSYS, so that the C library falls back to older calls.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tracelloc.architecture import machine_name, of_machine
from tracelloc.architecture.description import SystemCallTable

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000
# BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ, BPF_JMP|BPF_JGT, BPF_ALU|BPF_AND, BPF_RET.
_LOAD, _EQUAL, _ABOVE, _ALL_BITS, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # Offsets in struct seccomp_data

_FIONBIO: Final = 0x5421
_TCGETS: Final = 0x5401
_PR_SET_NAME: Final = 15
_PR_SET_SECCOMP: Final = 22
_CLONE_PARENT_SIGCHLD: Final = 0x8000 | 17
_CLONE_THREAD: Final = 0x10000


class Confinement(Enum):
    """The purpose of a confined process."""

    # Answers questions about open files: forks nothing, and opens nothing by name.
    READER = "reader"
    ZYGOTE = "zygote"  # A reader that forks readers
    # Executes one program, which opens files by name to read them, and may have threads.
    PROGRAM = "program"


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
_READER_RULES: Final = (ArgumentRule("ioctl", 1, _FIONBIO), ArgumentRule("prctl", 0, _PR_SET_NAME))
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
# Calls that no file reader makes, even by accident. They end the process.
_HOSTILE: Final = """
    ptrace process_vm_readv process_vm_writev bpf init_module finit_module kexec_load
    kexec_file_load open_by_handle_at io_uring_setup
"""


def filter_of(confinement: Confinement, machine: str | None = None) -> bytes:
    """The program of a filter (struct sock_filter); empty for unknown machines.

    ``machine`` is the kernel's name for it; None: this machine.
    """
    architecture = of_machine(machine or machine_name())
    if architecture is None:
        return b""
    return b"".join(_instructions(confinement, architecture.system_calls))


def _instructions(confinement: Confinement, table: SystemCallTable) -> Iterable[bytes]:
    numbers = table.numbers
    yield _instruction(_LOAD, _MACHINE)
    yield _instruction(_EQUAL, table.audit_machine, yes=1)
    yield _instruction(_RETURN, _KILL_PROCESS)
    yield _instruction(_LOAD, _NUMBER)
    names = _READER + (_PROGRAM if confinement is Confinement.PROGRAM else "")
    for name in names.split():
        if name in numbers:  # newer architectures have no open, stat or poll
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
