"""64-bit Arm. Sources: AAPCS64 and DWARF for the Arm 64-bit Architecture (github.com/ARM-software/
abi-aa); Arm Architecture Reference Manual; the kernel's arch/arm64.
"""

from __future__ import annotations

import ctypes
import platform
import re
from typing import Final

from tracelloc.architecture.aarch64.calls import CALL_BYTES, ends_in_call
from tracelloc.architecture.aarch64.instructions import jump_targets
from tracelloc.architecture.aarch64.systemcalls import SYSTEM_CALLS
from tracelloc.architecture.description import (
    Architecture,
    DwarfRegisters,
    GeneralRegisters,
    SignalFrame,
    ThreadLayout,
)

_DWARF: Final = DwarfRegisters(
    count=34, stack_pointer=31, frame_pointer=29, return_address=30,
    program_counter=32,
    callee_saved=frozenset(range(19, 30)),
)  # fmt: skip
"""DWARF for the Arm 64-bit Architecture, 4.1: x0 to x30, sp, pc, ELR_mode. A call changes x30."""
_GENERAL: Final = GeneralRegisters(
    names=(*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"),
    kernel_count=34,
    program_counter="pc",
    stack_pointer="sp",
    call_number="x8",
    call_arguments=("x0", "x1", "x2", "x3", "x4", "x5"),
    entered_call=None,
    thread_pointer=None,
    entered_call_set=0x404,  # NT_ARM_SYSTEM_CALL
    thread_pointer_set=0x401,  # NT_ARM_TLS
)
"""``struct user_pt_regs`` (asm/ptrace.h), syscall(2)."""
_THREADS: Final = ThreadLayout(
    program_offset=16, record_bytes=1 << 11, self_words=(), kernel_field=("uw", "tp_value")
)
"""Two words of the C library's (``tcbhead_t``), then the program's variables. The record has 1,856
bytes in glibc 2.41."""
_REGISTERS_AT: Final = 128 + 176 + 8
"""siginfo, ucontext up to ``uc_mcontext``, which is aligned to 16 bytes, and its fault address."""
_SIGNAL_FRAME: Final = SignalFrame(
    {number: _REGISTERS_AT + 8 * number for number in range(33)},  # x0 to x30, sp, pc
    bytes.fromhex("681180d2010000d4"),  # mov x8, #139; svc #0
)
"""``struct rt_sigframe`` (arch/arm64/kernel/signal.c) and ``struct sigcontext``."""

_AT_RANDOM: Final = 25
"""getauxval(3): the address of bytes on the stack of the main thread, near its end."""


def _code_bits() -> int:
    """Bits of a return address; an authentication code may be above them.

    Kernels are configured for 36 to 52 bits, of which programs get 48 unless they ask for more.
    Stacks end where the addresses do. On another machine: 48.
    """
    if platform.machine() != "aarch64":
        return 48
    get = ctypes.CDLL(None).getauxval
    get.restype, get.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return min(48, int(get(_AT_RANDOM)).bit_length()) or 48


AARCH64: Final = Architecture(
    name="aarch64",
    title="64-bit Arm",
    short_name="arm64",
    elf_machine=183,
    elf_name="EM_AARCH64",
    argument_registers=tuple(f"x{number}" for number in range(8)),  # AAPCS64, 6.8.2
    usdt_registers=(*(f"x{number}" for number in range(31)), "sp"),
    usdt_argument=re.compile(
        r"-?8@(?:(?P<register>x\d\d?|sp)|\[(?P<base>x\d\d?|sp)"
        r"(?:, ?#?(?P<displacement>-?(?:0x[0-9a-f]{1,8}|\d{1,9})))?\])"
    ),
    dwarf=_DWARF,
    miss_registers=(32, 31, 29, *range(19, 29)),
    general=_GENERAL,
    threads=_THREADS,
    signal_frame=_SIGNAL_FRAME,
    address_bits=48,
    red_zone_bytes=0,
    return_address_mask=(1 << _code_bits()) - 1,
    return_address_bytes=0,
    instruction_bytes=4,
    breakpoint_bytes=4,
    breakpoint_code=b"\0\0\x20\xd4",  # brk #0
    breakpoint_advance=0,
    longest_call_bytes=CALL_BYTES,
    jump_targets=jump_targets,
    ends_in_call=ends_in_call,
    system_calls=SYSTEM_CALLS,
    system_call_code=b"\x01\0\0\xd4",
    # mov xN or wN, #167 or #277
    filter_call_code=re.compile(rb"(?:[\xe0-\xff]\x14|[\xa0-\xbf]\x22)\x80[\x52\xd2]", re.DOTALL),
    private_stack_code=None,
    has_preloaded_library=False,
    shadow_stack_status=None,  # guarded control stacks have no line in it
    shadow_stack_code=b"",
)
