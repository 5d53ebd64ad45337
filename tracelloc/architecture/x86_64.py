"""x86-64. Sources: System V ABI, AMD64 supplement; Intel SDM; the kernel's arch/x86."""

import re
from typing import Final

from tracelloc.architecture import description

# arch/x86/include/uapi/asm/prctl.h.
_SHADOW_STACK: Final = bytes.fromhex(
    "53 4889fb"  # push %rbx; mov %rdi,%rbx: the function to call
    "bf01500000 be01000000 b89e000000 0f05"  # arch_prctl(ARCH_SHSTK_ENABLE, ARCH_SHSTK_SHSTK)
    "4885c0 7519"  # test %rax,%rax; jnz to the end
    "31ff ffd3"  # the function, with a null argument
    "bf02500000 be01000000 b89e000000 0f05"  # arch_prctl(ARCH_SHSTK_DISABLE, …)
    "31c0 5b c3"  # 0
    "5b c3"  # return arch_prctl's result
)
# arch/x86/entry/syscalls/syscall_64.tbl, up to Linux 6.13.
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

_JUMP: Final = re.compile(rb"\x0f(?=[\x80-\x8f])", re.DOTALL)  # jcc with 4 bytes of distance: 0F 8x
_JUMP_BYTES: Final = 6


def jump_targets(code: bytes, address: int) -> set[int]:
    """Returns the targets of conditional jumps in code at an address; some may not be real."""
    found = set()
    for match in _JUMP.finditer(code):
        at = match.start()
        distance = code[at + 2 : at + _JUMP_BYTES]
        found.add(address + at + _JUMP_BYTES + int.from_bytes(distance, "little", signed=True))
    return found


def ends_in_call(code: bytes) -> bool:
    """Whether code bytes end with a call instruction.

    ``e8 rel32``, or ``ff /2`` with its operand in a register or in memory (Intel SDM
    volume 2, CALL and tables 2-2, 2-3). Prefixes precede these bytes.
    """
    return code[-5:-4] == b"\xe8" or any(
        code[-length] == 0xFF and _indirect_call_length(code[-length:]) == length
        for length in range(2, min(len(code), 7) + 1)
    )


def _indirect_call_length(code: bytes) -> int:
    """Returns the length of an ``ff /2`` instruction that begins ``code``; 0 for others."""
    mode, operand = code[1] >> 6, code[1] & 7
    if code[1] >> 3 & 7 != 2:
        return 0
    if mode == 3:
        return 2
    has_sib = operand == 4
    base = code[2] & 7 if has_sib and len(code) > 2 else operand
    return 2 + has_sib + (4 if mode == 0 and base == 5 else (0, 1, 4)[mode])


# The words of `struct pt_regs` (asm/ptrace.h).
_PT_REGS: Final = (
    *("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8"),
    *("ax", "cx", "dx", "si", "di", "orig_ax", "ip", "cs", "flags", "sp", "ss"),
)


def _usdt_registers() -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for word, name in enumerate(_PT_REGS):
        names = [f"r{name}", f"e{name}", name, f"{name.removesuffix('x')}l"]
        if name[1:].isdigit():
            names = [name, f"{name}d", f"{name}w", f"{name}b"]
        found |= {each: (word, 0, 8 >> at) for at, each in enumerate(names)}
        if name in ("ax", "bx", "cx", "dx"):
            found[f"{name[0]}h"] = word, 8, 1
    return found


X86_64: Final = description.Architecture(
    name="x86_64",
    title="x86-64",
    short_name="amd64",
    elf_machine=62,
    elf_name="EM_X86_64",
    argument_registers=("rdi", "rsi", "rdx", "rcx", "r8", "r9"),  # AMD64 supplement, 3.2.3
    usdt_registers=_usdt_registers(),
    usdt_counter="rip",
    usdt_argument=re.compile(
        r"%(?P<register>\w+)|\$(?P<constant>[-+\w]+)|(?P<displacement>[-+\w.$]*)"
        r"(?:\((?:%(?P<base>\w+))?(?:,%(?P<index>\w+)(?:,(?P<scale>[1248]))?)?\))?"
    ),
    # AMD64 supplement, figures 3.36 and 3.4. 16 is the return address column, no real register.
    dwarf=description.DwarfRegisters(
        count=17, stack_pointer=7, frame_pointer=6, return_address=16,
        program_counter=16,
        callee_saved=frozenset({3, 6, 12, 13, 14, 15}),
    ),
    miss_registers=(16, 7, 6, 3, 12, 13, 14, 15),
    # `struct user_regs_struct` (sys/user.h), syscall(2).
    general=description.GeneralRegisters(
        names=(
            "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx",
            "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base",
            "gs_base", "ds", "es", "fs", "gs",
        ),
        kernel_count=21,
        program_counter="rip",
        stack_pointer="rsp",
        call_number="rax",
        call_arguments=("rdi", "rsi", "rdx", "r10", "r8", "r9"),
        call_result="rax",
        entered_call="orig_rax",
        thread_pointer="fs_base",
    ),
    # The record has 2,304 bytes in glibc, and begins with `tcbhead_t` (nptl/tls.h).
    threads=description.ThreadLayout(
        program_offset=None, record_bytes=1 << 12, tid_offsets=(0x2D0, 0x30),  # glibc, musl
        kernel_field=("fsbase",),
    ),
    # `uc_mcontext` of `struct rt_sigframe` (arch/x86/include/asm/sigframe.h).
    signal_frame=description.SignalFrame(
        {
            8: 40, 9: 48, 10: 56, 11: 64, 12: 72, 13: 80, 14: 88, 15: 96, 5: 104, 4: 112,
            6: 120, 3: 128, 1: 136, 0: 144, 2: 152, 7: 160, 16: 168,
        },
        bytes.fromhex("48c7c00f0000000f05"),  # mov $SYS_rt_sigreturn, %rax; syscall
    ),
    address_bits=47,
    red_zone_bytes=128,  # AMD64 supplement, 3.2.2
    return_address_mask=(1 << 64) - 1,
    return_address_bytes=8,
    instruction_bytes=1,
    breakpoint_bytes=1,
    breakpoint_code=b"\xcc",  # int3
    breakpoint_advance=1,
    # Without prefixes: ff /2 with a SIB byte and a displacement of four bytes.
    longest_call_bytes=7,
    jump_targets=jump_targets,
    ends_in_call=ends_in_call,
    system_calls=description.SystemCallTable(0xC000003E, 466, _NUMBERS, range(335, 387)),
    system_call_code=b"\x0f\x05",
    return_instruction=b"\xc3",
    filter_call_code=re.compile(
        rb"(?:[\xb8-\xbf]|\xc7[\xc0-\xc7])(?:\x9d\0\0\0|\x3d\x01\0\0)", re.DOTALL
    ),
    # add %gs:this_cpu_off,%r9 (emit_private_frame_ptr in arch/x86/net/bpf_jit_comp.c)
    private_stack_code=re.compile(rb"\x65\x4c\x03[\x0c\x0d]", re.DOTALL),
    shadow_stack_status=("x86_Thread_features", "shstk"),
    shadow_stack_code=_SHADOW_STACK,
)  # fmt: skip
