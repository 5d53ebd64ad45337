"""Loops that the verifier checks once: the kernel's counting iterator (probes/counted.h).

Its functions are called by their type's number, which differs from kernel to kernel. bcc can't
write such calls, so the probes call helpers that do not exist, and these are replaced.
"""

from __future__ import annotations

import functools
import platform
from typing import Final

import numpy as np

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.btf import FUNCTION, KernelTypes
from tracelloc.record.kernel.capabilities import kernel_is_at_least

# The kernel's functions by the names in `probes/counted.h`.
_MACROS: Final = {
    "ITERATOR_NEW": "bpf_iter_num_new",
    "ITERATOR_NEXT": "bpf_iter_num_next",
    "ITERATOR_DESTROY": "bpf_iter_num_destroy",
}
_FIRST_HELPER: Final = 0x7F000001
# The kernel's functions by the numbers of the helpers that stand for them.
FUNCTIONS: Final = dict(enumerate(_MACROS.values(), _FIRST_HELPER))
# The macros for `probes/counted.h`.
CFLAGS: Final = tuple(f"-D{name}={number}" for number, name in enumerate(_MACROS, _FIRST_HELPER))
# There since 6.4, where loops of unlike rounds are still followed to their ends or refused.
_KERNEL: Final = (6, 8)
_CALL: Final = 0x85
# The operation in an instruction's first byte, and its source in bits 12 to 15
# (include/uapi/linux/bpf.h); the upper 32 bits are the number of what is called.
_PSEUDO_KFUNC_CALL: Final = 2


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
    words = np.frombuffer(code, "<u8")
    helpers = np.where(words & 0xFF == _CALL, words >> 32, 0)
    if not np.isin(helpers, list(FUNCTIONS)).any():
        return code
    changed = words.copy()
    for helper, own in (type_numbers() or {}).items():
        changed[helpers == helper] = own << 32 | _PSEUDO_KFUNC_CALL << 12 | _CALL
    return changed.tobytes()
