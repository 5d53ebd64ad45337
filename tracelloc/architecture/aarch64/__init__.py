"""64-bit Arm. Sources: AAPCS64 and DWARF for the Arm 64-bit Architecture (github.com/ARM-software/
abi-aa); Arm Architecture Reference Manual; the kernel's arch/arm64.
"""

import ctypes
import platform
import re
from typing import Final

from tracelloc.architecture import description
from tracelloc.architecture.aarch64.instructions import jump_targets

# DWARF for the Arm 64-bit Architecture, 4.1: x0 to x30, sp, pc, ELR_mode. A call changes x30.
_DWARF: Final = description.DwarfRegisters(
    count=34, stack_pointer=31, frame_pointer=29, return_address=30,
    program_counter=32,
    callee_saved=frozenset(range(19, 30)),
)  # fmt: skip
# Two words of the C library's (`tcbhead_t`), then the program's variables. The record has 1,856
# bytes in glibc 2.41.
_THREADS: Final = description.ThreadLayout(
    program_offset=16, record_bytes=1 << 11,
    tid_offsets=(-168,),  # musl; glibc's differs between releases
    kernel_field=("uw", "tp_value"),
)  # fmt: skip
# siginfo, ucontext up to `uc_mcontext`, which is aligned to 16 bytes, and its fault address.
_REGISTERS_AT: Final = 128 + 176 + 8

# getauxval(3): the address of bytes on the stack of the main thread, near its end.
_AT_RANDOM: Final = 25


def _code_bits() -> int:
    """Returns the bits of a return address, above which an authentication code may be.

    Kernels are configured for 36 to 52 bits, of which programs get 48 unless they ask for more.
    The program's stack ends at the top of its addresses. Returns 48 on other machines.
    """
    if platform.machine() != "aarch64":
        return 48
    get = ctypes.CDLL(None).getauxval
    get.restype, get.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return min(48, int(get(_AT_RANDOM)).bit_length()) or 48


_CALL_BYTES: Final = 4
# (mask, value) of instruction words (Arm Architecture Reference Manual, C4.1, "Branches").
_CALLS: Final = (
    (0xFC000000, 0x94000000),  # bl
    (0xFFFFFC1F, 0xD63F0000),  # blr
    (0xFFFFF81F, 0xD63F081F),  # blraaz, blrabz
    (0xFFFFF800, 0xD73F0800),  # blraa, blrab
)


def ends_in_call(code: bytes) -> bool:
    """Whether code bytes end with a call instruction: bl, blr, blraa and its kin."""
    word = int.from_bytes(code[-_CALL_BYTES:], "little")
    return len(code) >= _CALL_BYTES and any(word & mask == value for mask, value in _CALLS)


# include/uapi/asm-generic/unistd.h, up to Linux 6.13. It has none of the calls that newer ones
# replace, such as open, stat, poll and pipe.
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

AARCH64: Final = description.Architecture(
    name="aarch64",
    title="64-bit Arm",
    short_name="arm64",
    elf_machine=183,
    elf_name="EM_AARCH64",
    argument_registers=tuple(f"x{number}" for number in range(8)),  # AAPCS64, 6.8.2
    usdt_registers={
        **{f"{kind}{n}": (n, 0, size) for n in range(31) for kind, size in (("x", 8), ("w", 4))},
        "sp": (31, 0, 8),
        "pc": (32, 0, 8),
    },
    usdt_counter="pc",
    usdt_argument=re.compile(
        r"(?P<register>[xw]\d\d?|sp)|#?(?P<constant>[-+]?\d\w*)|\[(?P<base>x\d\d?|sp)(?:, ?(?:"
        r"(?P<index>x\d\d?)(?:, ?lsl #?(?P<shift>[0-3]))?|#?(?P<displacement>[-+]?\d\w*)))?\]"
    ),
    dwarf=_DWARF,
    miss_registers=(32, 31, 29, *range(19, 29)),
    # `struct user_pt_regs` (asm/ptrace.h), syscall(2).
    general=description.GeneralRegisters(
        names=(*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"),
        kernel_count=34,
        program_counter="pc",
        stack_pointer="sp",
        call_number="x8",
        call_arguments=("x0", "x1", "x2", "x3", "x4", "x5"),
        call_result="x0",
        entered_call=None,
        thread_pointer=None,
        entered_call_set=0x404,  # NT_ARM_SYSTEM_CALL
        thread_pointer_set=0x401,  # NT_ARM_TLS
    ),
    threads=_THREADS,
    # `struct rt_sigframe` (arch/arm64/kernel/signal.c) and `struct sigcontext`.
    signal_frame=description.SignalFrame(
        {number: _REGISTERS_AT + 8 * number for number in range(33)},  # x0 to x30, sp, pc
        bytes.fromhex("681180d2010000d4"),  # mov x8, #139; svc #0
    ),
    address_bits=48,
    red_zone_bytes=0,
    return_address_mask=(1 << _code_bits()) - 1,
    return_address_bytes=0,
    instruction_bytes=4,
    breakpoint_bytes=4,
    breakpoint_code=b"\0\0\x20\xd4",  # brk #0
    breakpoint_advance=0,
    longest_call_bytes=_CALL_BYTES,
    jump_targets=jump_targets,
    ends_in_call=ends_in_call,
    system_calls=description.SystemCallTable(0xC00000B7, 466, _NUMBERS, range(295, 403)),
    system_call_code=b"\x01\0\0\xd4",
    return_instruction=b"\xc0\x03\x5f\xd6",
    # mov xN or wN, #167 or #277
    filter_call_code=re.compile(rb"(?:[\xe0-\xff]\x14|[\xa0-\xbf]\x22)\x80[\x52\xd2]", re.DOTALL),
    private_stack_code=None,
    shadow_stack_status=None,  # guarded control stacks have no line in it
    shadow_stack_code=b"",
)
