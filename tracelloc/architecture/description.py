"""The description of an architecture: one frozen record, without behavior of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemCallTable:
    """The numbers of an architecture's system calls."""

    audit_machine: int
    """AUDIT_ARCH_… (linux/audit.h): other tables of the same processor are refused."""
    newest: int
    """The highest known number."""
    numbers: Mapping[str, int]
    """By name; calls that the architecture does not have are missing."""
    unassigned: range
    """Numbers that no kernel before Linux 6.11 had assigned."""


@dataclass(frozen=True, slots=True)
class DwarfRegisters:
    """Registers by the numbers that call-frame information uses."""

    count: int
    """Rules are kept for the registers below this number; none above leads to a caller."""
    stack_pointer: int
    frame_pointer: int
    return_address: int
    """The register whose rule is that of the return address."""
    program_counter: int
    """The address of execution. Another number than ``return_address``: calls leave the return
    address in a register, and functions may keep it there."""
    callee_saved: frozenset[int]
    """Registers that a function without a rule for them has not changed."""

    @property
    def has_link_register(self) -> bool:
        """Whether a call leaves the return address in a register instead of on the stack."""
        return self.return_address != self.program_counter


@dataclass(frozen=True, slots=True)
class SignalFrame:
    """How the kernel stores the interrupted registers for a signal handler."""

    places: Mapping[int, int]
    """Bytes from the stack pointer in the handler's caller, by DWARF number."""
    return_code: bytes
    """The instructions to which signal handlers return: a call of rt_sigreturn(2)."""


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """Describes what differs between processors. Each architecture has one instance."""

    name: str
    """The kernel's name (``platform.machine()``)."""
    title: str
    """The name for people."""
    elf_machine: int
    """``e_machine`` of ELF files (EM_…, elf.h)."""
    elf_name: str
    """The name of that number, such as ``EM_X86_64``."""
    is_traced: bool
    """Whether tracelloc records programs on it; the files of the others can be read."""

    argument_registers: tuple[str, ...]
    """The registers of a function's first integer arguments, in order, by capstone's names."""
    usdt_registers: tuple[str, ...]
    """The 64-bit registers in USDT notes, by their numbers in the probes' cookies."""
    usdt_argument: re.Pattern[str]
    """A 64-bit USDT argument: groups ``register``, or ``base`` and maybe ``displacement``."""
    dwarf: DwarfRegisters
    signal_frame: SignalFrame

    address_bits: int
    """Bits of a user-space address. The others are 0, or a tag or an authentication code."""
    return_address_mask: int
    """The bits of a return address that are the address; the others may authenticate it."""
    return_address_bytes: int
    """Bytes that a call pushes. So the stack pointer at a return probe is higher by this many
    than at the entry."""

    breakpoint_bytes: int
    """Size of the breakpoint instruction that uprobes put into code."""
    longest_call_bytes: int
    """Size of the longest call instruction, prefixes apart."""
    jump_targets: Callable[[bytes, int], set[int]]
    """Returns the targets of jumps in code at an address, those to parts of a function that lie
    elsewhere included. Some may not be real."""
    ends_in_call: Callable[[bytes], bool]
    """Returns whether code bytes end with a call instruction."""
    system_calls: SystemCallTable
    system_call_code: bytes
    """The instruction that calls the kernel."""
    filter_call_code: re.Pattern[bytes]
    """A move of the number of prctl(2) or seccomp(2) into a register."""
    private_stack_code: re.Pattern[bytes] | None
    """Native code of BPF programs that have a private stack per processor; None: not known."""
    shadow_stack_code: bytes
    """Machine code that calls a function with a shadow stack; empty: none is known.

    ``long f(void (*function)(void *))`` returns 0, or the error of the call that enables it."""

    def system_call(self, name: str) -> int:
        """The number of a system call. Raises KeyError for one that it does not have."""
        return self.system_calls.numbers[name]
