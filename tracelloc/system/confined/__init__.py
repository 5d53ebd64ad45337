"""Confined processes for untrusted files: no rights, no network, no files, bounded resources.

A file that takes over such a process gains nothing. The process runs as a user that owns nothing
(see ``OWN_USERS``). Its only descriptors are the pipe to tracelloc and the file, and it can open
no others (no_new_privs, prctl(2); Landlock). It may make few system calls (``filter_of``), start no
processes, and use little memory.
"""

import errno
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from tracelloc.architecture import machine_architecture, machine_name
from tracelloc.architecture.description import SystemCallTable
from tracelloc.dataclass import dataclass

# System call filters of confined processes, in classic BPF (seccomp(2)).

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
    """The purpose of a confined process, which decides its permitted system calls."""

    # Answers questions about open files: forks nothing, and opens nothing by name.
    READER = "reader"
    ZYGOTE = "zygote"  # A reader that forks readers
    # Executes one program, which opens files by name to read them, and may have threads.
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """Allows a system call if an argument's lower 32 bits, masked, have a value."""

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
    """Returns a seccomp filter's program (struct sock_filter); empty for unknown machines."""
    architecture = machine_architecture(machine or machine_name())
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
    """Yields instructions that allow a call with an argument, or go on to the next rules."""
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


NOBODY: Final = 65534  # Fallback user and group, for user namespaces without higher numbers
# First user and group number; the id of the tracelloc process is added. No distribution or systemd
# uses numbers from 0x70000000 to 0x7FFFFFFE (https://systemd.io/UIDS-GIDS).
OWN_USERS: Final = 0x72000000

_FILTERS: Final = {each.value: filter_of(each) for each in Confinement}

# Python source of `confine(memory_bytes)`, which drops these rights. Raises OSError.
#
# `files`: the most open files. `role`: the value of a `Confinement`.
CONFINE: Final = f"""
import ctypes, os, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
def limit(kind, bound):
    kind = getattr(resource, "RLIMIT_" + kind)
    hard = resource.getrlimit(kind)[1]
    bound = bound if hard < 0 else min(bound, hard)
    resource.setrlimit(kind, (bound, bound))
def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
def filter_calls(role):
    code = {_FILTERS!r}[role]
    if code:
        code = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
        # PR_SET_SECCOMP, SECCOMP_MODE_FILTER. EINVAL: a kernel without.
        if libc.prctl(22, 2, program, 0, 0) and ctypes.get_errno() != 22:
            raise OSError(ctypes.get_errno(), "seccomp")
def confine_files(opens):
    # landlock(7), where the kernel has it: all rights that its version knows.
    version = libc.syscall(ctypes.c_long(444), None, ctypes.c_long(0), 1)
    if version <= 0:
        return
    files = (0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)[min(version, 5) - 1]
    if opens:
        files &= ~13  # EXECUTE, READ_FILE, READ_DIR
    words = [files]
    if version >= 4:
        words.append(3)  # NET_BIND_TCP, NET_CONNECT_TCP
    if version >= 6:
        words.append(3)  # SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL
    rules = struct.pack(f"={{len(words)}}Q", *words)
    rules = libc.syscall(ctypes.c_long(444), rules, ctypes.c_long(len(rules)), 0)
    if rules >= 0:
        libc.syscall(ctypes.c_long(446), rules, 0)
        os.close(rules)
def confine(memory_bytes, files=256, role="reader"):
    for kind, bound in (("AS", memory_bytes), ("CORE", 0), ("FSIZE", 0), ("NOFILE", files)):
        limit(kind, bound)
    processes = 0 if role == "reader" else None
    if os.geteuid() == 0:
        libc.unshare(0x40000000)  # CLONE_NEWNET: where that is refused, there is a network
        # Some user namespaces have no such high numbers, or no other user at all; and where there
        # is no CAP_SETUID, root is one in name only: what it may do beyond is lost below.
        for user in ({OWN_USERS} + os.getppid(), {NOBODY}):
            try:
                become(user)
            except OSError as error:
                if error.errno not in (1, 22):  # EPERM, EINVAL
                    raise
            else:
                processes = 64 if processes is None else processes
                break
    if processes is not None:
        limit("NPROC", processes)
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT, clear all
    libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    confine_files(opens=role == "program")
    filter_calls(role)
"""

_EXECUTE: Final = (
    CONFINE
    + "import sys\nconfine(int(sys.argv[1]), role='program')\nos.execv(sys.argv[2], sys.argv[2:])\n"
)


def start_confined(
    command: Sequence[str], memory_bytes: int, *, environment: Mapping[str, str],
    descriptors: Collection[int] = (),
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Starts a confined program with pipes; ``descriptors`` are inherited. Raises OSError."""
    return start_reader([_EXECUTE, str(memory_bytes), *command], environment, descriptors)


def start_reader(
    script: Sequence[str], environment: Mapping[str, str] | None = None,
    descriptors: Collection[int] = (), channel: int | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Starts Python source that calls ``confine``; ``channel``: a socket instead of pipes."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", *script],
        stdin=subprocess.PIPE if channel is None else channel,
        stdout=subprocess.PIPE if channel is None else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        env=environment,
        pass_fds=tuple(descriptors),
        start_new_session=True,  # Ctrl-C is for tracelloc
    )
