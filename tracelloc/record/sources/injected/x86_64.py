"""What brings back the registers of a thread of x86-64: a frame for rt_sigreturn(2).

Layout: ``struct ucontext`` and ``struct sigcontext`` (asm/ucontext.h, asm/sigcontext.h), with the
vector and other extended registers in an XSAVE area.
"""

import ctypes
import struct
from typing import Final

from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process

_NT_X86_XSTATE: Final = 0x202
_UC_FLAGS: Final = 1 | 2 | 4  # UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS
# Flags that sigaltstack(2) rejects, so that the kernel leaves the thread's alternate stack.
_KEEP_ALTERNATE_STACK: Final = 0x7FFF
_UCONTEXT: Final = struct.Struct("<QQ QiiQ 18Q 4H QQQQ 8Q Q")
# Offset in an XSAVE area of the bytes in which the kernel describes it (`_fpx_sw_bytes`).
_SOFTWARE_BYTES: Final = 464
_USED_FEATURES: Final = 512 + 2  # Offset of byte 2 of XSTATE_BV (Intel SDM volume 1, 13.4)
_TILE_DATA: Final = 1 << 2  # Of that byte: state component 18 (13.5.14)
_TILES: Final = 2816  # Offset of that component
_MAGIC_1: Final = 0x46505853
_MAGIC_2: Final = struct.pack("<I", 0x46505845)
_FRAME_REGISTERS: Final = (
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
    "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp", "rip", "eflags",
)  # fmt: skip
# ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND: the kernel makes the call again.
_RESTARTS: Final = range(512, 515)
_RESTART_BLOCK: Final = 516
_SYSCALL_BYTES: Final = 2


def begin(_process: Process, _thread_id: int) -> dict[str, int]:
    """Returns registers that a thread is to have after it has made system calls: as it had them."""
    return {}


def rank(_process: Process, values: ptrace.Registers) -> int:
    """Returns how well a stopped thread suits for making system calls; 0: best.

    0: it is in a call that can be made again; 1: whose timeout would begin again; 2: in none.
    """
    if values.entered_call == ptrace.NO_CALL:
        return 2
    return int(-ctypes.c_int64(values["rax"]).value not in _RESTARTS[:2])


def vectors_lost_by_calls(_thread_id: int) -> dict[int, bytes]:
    """Returns the register sets, by number, that a thread's system calls change."""
    return {}


def entry(
    thread_id: int, kept: ptrace.Registers, mask: int, end: int, restore: int
) -> tuple[ptrace.Registers, bytes]:
    """Returns registers that lead back to those of a thread, and the memory from its stack on.

    ``end``: of that memory. ``restore``: address of code for rt_sigreturn(2), to which it returns.
    """
    state = ptrace.register_set(thread_id, _NT_X86_XSTATE)
    at = (end - len(state) - len(_MAGIC_2)) & -64
    frame = _signal_frame(kept, mask, at)
    start = ((at - len(frame) - 16) & -16) + 8
    image = struct.pack("<Q", restore) + frame
    image += bytes(at - start - len(image)) + described(state) + _MAGIC_2
    values = kept.copy()
    values["rsp"], values["orig_rax"] = start, ptrace.NO_CALL
    return values, image


def described(state: bytes) -> bytes:
    """Returns an XSAVE area with the description that the kernel adds in a signal frame.

    Without data in AMX's tiles, the area ends before these: the kernel takes no larger one from a
    thread without the right to them (arch_prctl(2), ARCH_REQ_XCOMP_PERM).
    """
    if not state[_USED_FEATURES] & _TILE_DATA:
        state = state[:_TILES]
    features = state[_SOFTWARE_BYTES : _SOFTWARE_BYTES + 8]
    words = struct.pack("<II", _MAGIC_1, len(state) + len(_MAGIC_2)) + features
    words += struct.pack("<I", len(state))
    end = _SOFTWARE_BYTES + len(words)
    return state[:_SOFTWARE_BYTES] + words + state[end:]


def _signal_frame(kept: ptrace.Registers, mask: int, state_at: int) -> bytes:
    """Encodes the context that rt_sigreturn restores; ``state_at``: address of the XSAVE area.

    A system call that the stop has interrupted is made again, as the kernel does.
    """
    values = kept.copy()
    if kept.entered_call != ptrace.NO_CALL:
        error = -ctypes.c_int64(kept["rax"]).value
        if error in _RESTARTS or error == _RESTART_BLOCK:
            values["rax"], values["rip"] = kept["orig_rax"], kept["rip"] - _SYSCALL_BYTES
    return _UCONTEXT.pack(
        _UC_FLAGS, 0, 0, _KEEP_ALTERNATE_STACK, 0, 0,
        *(values[name] for name in _FRAME_REGISTERS),
        kept["cs"] & 0xFFFF, 0, 0, kept["ss"] & 0xFFFF, 0, 0, 0, 0, state_at, *(0,) * 7, mask,
    )  # fmt: skip
