"""Loops that the verifier checks once: the kernel's counting iterator (probes/counted.h).

Its functions are called by their type's number, which differs from kernel to kernel. bcc can't
write such calls, so the probes call helpers that do not exist, and these are replaced.
"""

from __future__ import annotations

import functools
import platform
from typing import Final

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.btf import FUNCTION, KernelTypes
from tracelloc.record.kernel.capabilities import kernel_is_at_least
from tracelloc.record.kernel.compiler import INSTRUCTION_BYTES

FUNCTIONS: Final = {
    0x7F000001: "bpf_iter_num_new",
    0x7F000002: "bpf_iter_num_next",
    0x7F000003: "bpf_iter_num_destroy",
}
"""By the numbers in ``probes/counted.h``."""
_KERNEL: Final = (6, 8)
"""There since 6.4, where loops of unlike rounds are still followed to their ends or refused."""
_CALL: Final = 0x85
_PSEUDO_KFUNC_CALL: Final = 2
"""An instruction's operation and source, include/uapi/linux/bpf.h."""


@functools.cache
def type_numbers() -> dict[int, int] | None:
    """Returns the functions' type numbers, by the helpers' numbers; None if not to be used."""
    if not kernel_is_at_least(platform.release(), _KERNEL):
        return None
    try:
        types = KernelTypes()
    except UnsupportedError:
        return None
    found = {number: types.type_id(FUNCTION, name) for number, name in FUNCTIONS.items()}
    numbers = {number: own for number, own in found.items() if own is not None}
    return numbers if len(numbers) == len(FUNCTIONS) else None


def with_iterators(code: bytes) -> bytes:
    """Returns instructions that call the kernel's functions in place of such helpers."""
    numbers = type_numbers() or {}
    changed = bytearray(code)
    for at in range(0, len(code), INSTRUCTION_BYTES):
        if code[at] != _CALL:
            continue
        own = numbers.get(int.from_bytes(code[at + 4 : at + 8], "little"))
        if own is not None:
            changed[at + 1] = _PSEUDO_KFUNC_CALL << 4
            changed[at + 4 : at + 8] = own.to_bytes(4, "little")
    return bytes(changed)
