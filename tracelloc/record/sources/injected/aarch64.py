"""What brings back the registers of a thread of 64-bit Arm: a frame for rt_sigreturn(2).

Layout: ``struct rt_sigframe`` (arch/arm64/kernel/signal.c) and the records in ``struct sigcontext``
(asm/sigcontext.h). Register sets: asm/ptrace.h.
"""

import os
import struct
from typing import Final

from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.errors import TargetError
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process

# NT_ of elf.h: vector registers; what SVE adds to them; in SME's streaming mode; control stack.
_FPSIMD, _SVE, _STREAMING, _GUARDED = 2, 0x405, 0x40B, 0x410
# `struct user_sve_header`: bytes of a register, and flags, 1: the set has all that SVE adds.
_SVE_HEADER: Final = struct.Struct("<8xH2xH2x")
# siginfo; `struct ucontext` up to the records, with the registers.
_FRAME: Final = struct.Struct("<128x QQ QiiQ Q120x8x Q34Q8x")
_RECORDS_BYTES: Final = 4096
# Flags that sigaltstack(2) rejects, so that the kernel leaves the thread's alternate stack.
_KEEP_ALTERNATE_STACK: Final = 0x7FFF
_FPSIMD_MAGIC: Final = 0x46508001
_SVE_MAGIC: Final = 0x53564501
_JUMPED: Final = 3 << 10  # Of PSTATE, BTYPE: the last instruction was an indirect branch
_RESTART_BLOCK: Final = 516  # ERESTART_RESTARTBLOCK
# Calls whose timeouts begin anew if they are made again by their own numbers.
_SLEEPS: Final = {AARCH64.system_call(name) for name in ("nanosleep", "clock_nanosleep", "futex")}


def _optional(thread_id: int, number: int) -> bytes:
    """Returns a register set, padded; all 0 if the processor does not have it."""
    try:
        return ptrace.register_set(thread_id, number).ljust(_SVE_HEADER.size, b"\0")
    except OSError:
        return bytes(_SVE_HEADER.size)


def begin(process: Process, thread_id: int) -> dict[str, int]:
    """Returns registers for a thread after it has made system calls. TargetError: it can't."""
    if _optional(thread_id, _GUARDED)[0] & 1:
        raise TargetError("it has a guarded control stack")
    if _SVE_HEADER.unpack_from(_optional(thread_id, _STREAMING))[1] & 1:
        raise TargetError("its threads use the streaming mode of SME; try again")
    if rank(process, ptrace.registers(thread_id)) == 1 and _is_asleep(thread_id):
        return {"x8": AARCH64.system_call("restart_syscall")}
    return {}


def _is_asleep(thread_id: int) -> bool:
    """Makes a thread begin and break off its system call again. Returns whether that has a timeout.

    The kernel goes on with such a call by restart_syscall(2). It tells only at the call's end.
    """
    result = 0
    ptrace.resume_to_call(thread_id)
    while (status := os.waitpid(thread_id, ptrace.WALL)[1]) >> 16 != ptrace.Event.STOP:
        if not os.WIFSTOPPED(status):
            raise TargetError("the target has ended")
        result = ptrace.registers(thread_id).call_result
        ptrace.interrupt(thread_id)
        # A signal is delivered; the thread stops before its handler runs.
        is_at_call = status >> 8 == ptrace.AT_CALL
        ptrace.resume_to_call(thread_id, 0 if is_at_call else os.WSTOPSIG(status))
    return result == -_RESTART_BLOCK


def rank(process: Process, values: ptrace.Registers) -> int:
    """Returns how well a stopped thread suits for making system calls; 0: best, 1: it may sleep.

    The kernel has brought a thread that was in a system call to where it makes that again.
    """
    code = AARCH64.system_call_code
    if process.read_memory(values.program_counter, len(code)) != code:
        return 2
    return int(values["x8"] in _SLEEPS)


def vectors_lost_by_calls(thread_id: int) -> dict[int, bytes]:
    """Returns the register sets, by number, that a thread's system calls change."""
    state = _optional(thread_id, _SVE)
    return {_SVE: state} if _SVE_HEADER.unpack_from(state)[1] & 1 else {}


def entry(
    thread_id: int, kept: ptrace.Registers, mask: int, end: int, restore: int
) -> tuple[ptrace.Registers, bytes]:
    """Returns registers that lead back to those of a thread, and the memory from its stack on.

    ``end``: of that memory. ``restore``: address of code for rt_sigreturn(2), to which it returns.
    """
    vectors = ptrace.register_set(thread_id, _FPSIMD)
    records = _record(_FPSIMD_MAGIC, vectors[512:520] + vectors[:512])
    for state in vectors_lost_by_calls(thread_id).values():
        width, _ = _SVE_HEADER.unpack_from(state)
        # 32 vector registers, 16 predicates and the first-fault register
        content = state[_SVE_HEADER.size :][: 32 * width + 17 * width // 8]
        records += _record(_SVE_MAGIC, struct.pack("<HHI", width, 0, 0) + content)
    if len(records) > _RECORDS_BYTES - 16:
        raise TargetError("its vector registers are in use, and too large; try again")
    image = _FRAME.pack(0, 0, 0, _KEEP_ALTERNATE_STACK, 0, 0, mask, 0, *kept.words) + records
    image += bytes(16)
    values = kept.copy()
    values["sp"], values["x30"] = (end - len(image)) & -16, restore
    values["pstate"] &= ~_JUMPED
    return values, image


def _record(magic: int, content: bytes) -> bytes:
    size = -(-(8 + len(content)) // 16) * 16
    return (struct.pack("<II", magic, size) + content).ljust(size, b"\0")
