"""64-bit Arm. Sources: AAPCS64 and DWARF for the Arm 64-bit Architecture (github.com/ARM-software/
abi-aa); Arm Architecture Reference Manual; the kernel's arch/arm64.
"""

from __future__ import annotations

import re
from typing import Final

from tracelloc.architecture.aarch64.calls import CALL_BYTES, ends_in_call
from tracelloc.architecture.aarch64.instructions import jump_targets
from tracelloc.architecture.aarch64.systemcalls import SYSTEM_CALLS
from tracelloc.architecture.description import Architecture, DwarfRegisters, SignalFrame

_DWARF: Final = DwarfRegisters(
    count=34, stack_pointer=31, frame_pointer=29, return_address=30,
    program_counter=32,
    callee_saved=frozenset(range(19, 30)),
)  # fmt: skip
"""DWARF for the Arm 64-bit Architecture, 4.1: x0 to x30, sp, pc, ELR_mode. A call changes x30."""
_REGISTERS_AT: Final = 128 + 176 + 8
"""siginfo, ucontext up to ``uc_mcontext``, which is aligned to 16 bytes, and its fault address."""
_SIGNAL_FRAME: Final = SignalFrame(
    {number: _REGISTERS_AT + 8 * number for number in range(33)},  # x0 to x30, sp, pc
    bytes.fromhex("681180d2010000d4"),  # mov x8, #139; svc #0
)
"""``struct rt_sigframe`` (arch/arm64/kernel/signal.c) and ``struct sigcontext``."""

AARCH64: Final = Architecture(
    name="aarch64",
    title="64-bit Arm",
    elf_machine=183,
    elf_name="EM_AARCH64",
    is_traced=False,
    argument_registers=tuple(f"x{number}" for number in range(8)),  # AAPCS64, 6.8.2
    usdt_registers=(*(f"x{number}" for number in range(31)), "sp"),
    usdt_argument=re.compile(
        r"-?8@(?:(?P<register>x\d\d?|sp)|\[(?P<base>x\d\d?|sp)"
        r"(?:, ?#?(?P<displacement>-?(?:0x[0-9a-f]{1,8}|\d{1,9})))?\])"
    ),
    dwarf=_DWARF,
    signal_frame=_SIGNAL_FRAME,
    address_bits=48,
    return_address_mask=(1 << 48) - 1,
    return_address_bytes=0,
    breakpoint_bytes=4,  # brk
    longest_call_bytes=CALL_BYTES,
    jump_targets=jump_targets,
    ends_in_call=ends_in_call,
    system_calls=SYSTEM_CALLS,
    system_call_code=b"\x01\0\0\xd4",
    # mov xN or wN, #167 or #277
    filter_call_code=re.compile(rb"(?:[\xe0-\xff]\x14|[\xa0-\xbf]\x22)\x80[\x52\xd2]", re.DOTALL),
    private_stack_code=None,
    shadow_stack_code=b"",
)
