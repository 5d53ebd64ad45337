"""The description of a processor architecture (``Architecture``): frozen records of facts."""

import re
from collections.abc import Callable, Mapping

from tracelloc.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SystemCallTable:
    """The numbers of an architecture's system calls."""

    audit_machine: int  # AUDIT_ARCH_… (linux/audit.h): other tables of the processor are refused
    newest: int  # The highest known number
    numbers: Mapping[str, int]  # By name; calls that the architecture does not have are missing
    unassigned: range  # Numbers that no kernel before Linux 6.11 had assigned


@dataclass(frozen=True, slots=True)
class DwarfRegisters:
    """Registers by the numbers that call-frame information uses."""

    count: int  # Registers below this number have rules; those above don't lead to a caller
    stack_pointer: int
    frame_pointer: int
    return_address: int  # The register by whose rule the return address is found
    # The address of execution. Another number than `return_address`: calls leave the return address
    # in a register, and functions may keep it there.
    program_counter: int
    callee_saved: frozenset[int]  # A function without a rule for them has not changed them

    @property
    def has_link_register(self) -> bool:
        """Whether a call leaves the return address in a register instead of on the stack."""
        return self.return_address != self.program_counter


@dataclass(frozen=True, slots=True)
class GeneralRegisters:
    """The general registers of a thread by name, as ptrace(2) passes them (NT_PRSTATUS)."""

    names: tuple[str, ...]  # In the kernel's order, 64 bits each
    # Number of the first registers that the kernel keeps of each thread: probes/registers.bpf.c
    # reads these (`struct pt_regs`).
    kernel_count: int
    program_counter: str
    stack_pointer: str
    call_number: str  # The register that has the number when a thread makes a system call
    call_arguments: tuple[str, ...]
    call_result: str
    # The register with the number of the system call in which a thread is, and that with the
    # address of its own variables; None: in register sets of their own (NT_…, elf.h; 0: none).
    entered_call: str | None
    thread_pointer: str | None
    entered_call_set: int = 0
    thread_pointer_set: int = 0


@dataclass(frozen=True, slots=True)
class ThreadLayout:
    """Where C libraries keep a thread's own variables and the library's record of the thread.

    ELF Handling for Thread-Local Storage: in variant I, variables are above the thread pointer and
    the record is below, in variant II the reverse.
    """

    # Bytes from the thread pointer to the program's own variables, before these are aligned; None:
    # they end at the thread pointer.
    program_offset: int | None
    record_bytes: int  # Most bytes of the C library's record of a thread (`struct pthread`)
    tid_offsets: tuple[int, ...]  # Where C libraries keep a thread's id, from the thread pointer
    kernel_field: tuple[str, ...]  # Members of `struct thread_struct` to the thread pointer

    def record(self, pointer: int) -> tuple[int, int]:
        """Returns (start, end) of the C library's record of a thread, given its thread pointer."""
        if self.program_offset is None:
            return pointer, pointer + self.record_bytes
        return max(0, pointer - self.record_bytes), pointer

    def variables(self, pointer: int, most_bytes: int) -> tuple[int, int]:
        """Returns (start, end) of a thread's variables of all modules, ``most_bytes`` at most."""
        if self.program_offset is None:
            return max(0, pointer - most_bytes), pointer
        return pointer, pointer + self.program_offset + most_bytes

    def program_variables(self, pointer: int, size_bytes: int, alignment: int) -> tuple[int, int]:
        """Returns (start, end) of the program's variables in a thread, aligned to a power of 2."""
        if self.program_offset is None:
            return pointer - -(-size_bytes // alignment) * alignment, pointer
        start = pointer + -(-self.program_offset // alignment) * alignment
        return start, start + size_bytes


@dataclass(frozen=True, slots=True)
class SignalFrame:
    """How the kernel stores the interrupted registers for a signal handler."""

    places: Mapping[int, int]  # Offsets from the handler's caller's stack pointer, by DWARF number
    return_code: bytes  # To which signal handlers return: a call of rt_sigreturn(2)


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """All facts that differ between processors. Each architecture has one instance."""

    name: str  # The kernel's name (`platform.machine()`)
    title: str  # The name for people
    short_name: str  # The name that Debian, Go and OpenTelemetry (`host.arch`) give it
    elf_machine: int  # `e_machine` of ELF files (EM_…, elf.h)
    elf_name: str  # The name of that number, such as `EM_X86_64`

    # The registers of a function's first integer arguments, in order, by capstone's names.
    argument_registers: tuple[str, ...]
    # The registers in USDT notes by name: (its word in `struct pt_regs`, the bits of it that are
    # below the named part, bytes of that part).
    usdt_registers: Mapping[str, tuple[int, int, int]]
    usdt_counter: str  # The name of the program counter among them
    # A USDT argument: groups `register`, `constant`, or `base`, `index` (with a `scale`, or a
    # `shift` in bits) and `displacement`.
    usdt_argument: re.Pattern[str]
    dwarf: DwarfRegisters
    # The DWARF numbers of the registers in a miss (`enum miss_register`, probes/event.h), in their
    # order; the first is the program counter.
    miss_registers: tuple[int, ...]
    general: GeneralRegisters
    threads: ThreadLayout
    signal_frame: SignalFrame

    # Bits of a user-space address. The others are 0, or a tag or an authentication code.
    address_bits: int
    red_zone_bytes: int  # Bytes below the stack pointer that a function may use
    return_address_mask: int  # Bits that are the address; the others may authenticate it
    # Bytes that a call pushes: the stack pointer at a return probe is higher by them.
    return_address_bytes: int

    instruction_bytes: int  # Size of the shortest one. They begin at its multiples.
    breakpoint_bytes: int
    breakpoint_code: bytes
    breakpoint_advance: int  # Bytes by which the program counter is behind a breakpoint's start
    longest_call_bytes: int  # Size of the longest call instruction, prefixes apart
    # Returns the targets of jumps in code at an address, those to parts of a function that lie
    # elsewhere included. Some may not be real.
    jump_targets: Callable[[bytes, int], set[int]]
    ends_in_call: Callable[[bytes], bool]  # Returns whether code bytes end with a call instruction
    system_calls: SystemCallTable
    system_call_code: bytes
    return_instruction: bytes  # The one without operands
    filter_call_code: re.Pattern[bytes]  # A move of prctl(2)'s or seccomp(2)'s number
    # Native code of BPF programs that have a private stack per processor; None: not known.
    private_stack_code: re.Pattern[bytes] | None
    # The line of /proc/PID/status, and the word in it, of a program with a shadow stack; None: the
    # kernel does not tell.
    shadow_stack_status: tuple[str, str] | None
    # Machine code that calls a function with a shadow stack; empty: none is known. The code,
    # `long f(void (*function)(void *))`, returns 0, or the error of the call that enables it.
    shadow_stack_code: bytes

    @property
    def address_end(self) -> int:
        """The first address behind a process's address space."""
        return 1 << self.address_bits

    def system_call(self, name: str) -> int:
        """Returns a system call's number. Raises KeyError if the architecture does not have it."""
        return self.system_calls.numbers[name]
