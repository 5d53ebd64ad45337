"""x86-64. Sources: System V ABI, AMD64 supplement; Intel SDM; the kernel's arch/x86."""

from __future__ import annotations

import re
from typing import Final

from tracelloc.architecture.description import (
    Architecture,
    DwarfRegisters,
    GeneralRegisters,
    SignalFrame,
    ThreadLayout,
)
from tracelloc.architecture.x86_64.calls import LONGEST_CALL_BYTES, ends_in_call, jump_targets
from tracelloc.architecture.x86_64.systemcalls import SYSTEM_CALLS

_DWARF: Final = DwarfRegisters(
    count=17, stack_pointer=7, frame_pointer=6, return_address=16,
    program_counter=16,
    callee_saved=frozenset({3, 6, 12, 13, 14, 15}),
)  # fmt: skip
"""AMD64 supplement, figures 3.36 and 3.4. 16 is the return address column, not a register that
one could name."""
_GENERAL: Final = GeneralRegisters(
    names=(
        "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx",
        "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds",
        "es", "fs", "gs",
    ),
    kernel_count=21,
    program_counter="rip",
    stack_pointer="rsp",
    call_number="rax",
    call_arguments=("rdi", "rsi", "rdx", "r10", "r8", "r9"),
    entered_call="orig_rax",
    thread_pointer="fs_base",
)  # fmt: skip
"""``struct user_regs_struct`` (sys/user.h), syscall(2)."""
_THREADS: Final = ThreadLayout(
    program_offset=None, record_bytes=1 << 12, self_words=(0, 2), kernel_field=("fsbase",)
)
"""The record has 2,304 bytes in glibc, and begins with ``tcbhead_t`` (nptl/tls.h)."""
_SIGNAL_FRAME: Final = SignalFrame(
    {
        8: 40, 9: 48, 10: 56, 11: 64, 12: 72, 13: 80, 14: 88, 15: 96, 5: 104, 4: 112,
        6: 120, 3: 128, 1: 136, 0: 144, 2: 152, 7: 160, 16: 168,
    },
    bytes.fromhex("48c7c00f0000000f05"),  # mov $SYS_rt_sigreturn, %rax; syscall
)  # fmt: skip
"""``uc_mcontext`` of ``struct rt_sigframe`` (arch/x86/include/asm/sigframe.h)."""
_SHADOW_STACK: Final = bytes.fromhex(
    "53 4889fb"  # push %rbx; mov %rdi,%rbx: the function to call
    "bf01500000 be01000000 b89e000000 0f05"  # arch_prctl(ARCH_SHSTK_ENABLE, ARCH_SHSTK_SHSTK)
    "4885c0 7519"  # test %rax,%rax; jnz to the end
    "31ff ffd3"  # the function, with a null argument
    "bf02500000 be01000000 b89e000000 0f05"  # arch_prctl(ARCH_SHSTK_DISABLE, …)
    "31c0 5b c3"  # 0
    "5b c3"  # return arch_prctl's result
)
"""arch/x86/include/uapi/asm/prctl.h."""

X86_64: Final = Architecture(
    name="x86_64",
    title="x86-64",
    short_name="amd64",
    elf_machine=62,
    elf_name="EM_X86_64",
    argument_registers=("rdi", "rsi", "rdx", "rcx", "r8", "r9"),  # AMD64 supplement, 3.2.3
    usdt_registers=(
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp",
        *(f"r{number}" for number in range(8, 16)),
    ),
    usdt_argument=re.compile(
        r"-?8@(?:%(?P<register>r\w+)|(?P<displacement>-?(?:0x[0-9a-f]{1,8}|\d{1,9}))?"
        r"\(%(?P<base>r\w+)\))"
    ),
    dwarf=_DWARF,
    miss_registers=(16, 7, 6, 3, 12, 13, 14, 15),
    general=_GENERAL,
    threads=_THREADS,
    signal_frame=_SIGNAL_FRAME,
    address_bits=47,
    red_zone_bytes=128,  # AMD64 supplement, 3.2.2
    return_address_mask=(1 << 64) - 1,
    return_address_bytes=8,
    instruction_bytes=1,
    breakpoint_bytes=1,
    breakpoint_code=b"\xcc",  # int3
    breakpoint_advance=1,
    longest_call_bytes=LONGEST_CALL_BYTES,
    jump_targets=jump_targets,
    ends_in_call=ends_in_call,
    system_calls=SYSTEM_CALLS,
    system_call_code=b"\x0f\x05",
    filter_call_code=re.compile(
        rb"(?:[\xb8-\xbf]|\xc7[\xc0-\xc7])(?:\x9d\0\0\0|\x3d\x01\0\0)", re.DOTALL
    ),
    # add %gs:this_cpu_off,%r9 (emit_private_frame_ptr in arch/x86/net/bpf_jit_comp.c)
    private_stack_code=re.compile(rb"\x65\x4c\x03[\x0c\x0d]", re.DOTALL),
    has_preloaded_library=True,
    shadow_stack_status=("x86_Thread_features", "shstk"),
    shadow_stack_code=_SHADOW_STACK,
)  # fmt: skip
