"""The kernel's types, from ``/sys/kernel/btf/vmlinux`` (Documentation/bpf/btf.rst).

The kernel's counting iterator (probes/counted.h), with which the verifier checks loops once, is
called by its functions' types, whose numbers differ from kernel to kernel. bcc can't write such
calls, so the probes call helpers that do not exist, which tracelloc replaces.
"""

import contextlib
import functools
import platform
import struct
from pathlib import Path
from typing import Final

import numpy as np

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.capabilities import kernel_is_at_least
from tracelloc.record.kernel.records import find_starts

_PATH: Final = Path("/sys/kernel/btf/vmlinux")
_HEADER: Final = struct.Struct("<HBBIIIII")
_MAGIC: Final = 0xEB9F
_STRUCT: Final = 4
FUNCTION: Final = 12  # BTF_KIND_FUNC
# Words after the three that each type has, by kind: INT, ARRAY, VAR, DECL_TAG.
_WORDS: Final = {1: 1, 3: 3, 14: 1, 17: 1}
# Words for each member: STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC, ENUM64.
_WORDS_EACH: Final = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}


class KernelTypes:
    """The types of the running kernel, by kind and name."""

    def __init__(self, path: Path = _PATH) -> None:
        """Reads the types. Raises UnsupportedError if the kernel does not show them."""
        try:
            content = path.read_bytes()
            magic, _, _, header_bytes, types, types_bytes, names, names_bytes = _HEADER.unpack_from(
                content
            )
        except (OSError, struct.error) as error:
            raise UnsupportedError(f"the kernel does not show its types (BTF): {error}") from error
        if magic != _MAGIC or types % 4:
            raise UnsupportedError("the kernel shows its types (BTF) in an unknown format")
        begin = header_bytes + types
        held = min(types_bytes, len(content) - begin) // 4 * 4
        self._words = np.frombuffer(content[begin : begin + max(0, held)], np.uint32)
        self._names = content[header_bytes + names : header_bytes + names + names_bytes]
        fixed, each = (
            np.array([words.get(kind, 0) for kind in range(32)]) for words in (_WORDS, _WORDS_EACH)
        )
        starts = np.zeros(len(self._words) // 3, np.int64)
        self._at = starts[: find_starts(self._words, fixed, each, starts)]

    def _name_offset(self, name: str) -> int:
        return self._names.find(b"\0" + name.encode() + b"\0") + 1

    def type_id(self, kind: int, name: str) -> int | None:
        """Returns the id of a type; None if there is none."""
        offset = self._name_offset(name)
        same = (self._words[self._at] == offset) & (self._words[self._at + 1] >> 24 & 31 == kind)
        found = np.flatnonzero(same)
        return int(found[0]) + 1 if offset and len(found) else None

    def offset_of(self, struct_name: str, *members: str) -> int:
        """Returns the offset in bytes of a member (of a member …). Raises UnsupportedError."""
        number = self.type_id(_STRUCT, struct_name)
        total = 0
        for member in members:
            found = self._member(number, member)
            if found is None:
                raise UnsupportedError(f"struct {struct_name} of this kernel has no {member}")
            offset, number = found
            total += offset
        return total

    def _member(self, number: int | None, member: str) -> tuple[int, int] | None:
        """Returns (offset in bytes, type id) of a structure's member; None if there is none."""
        wanted = self._name_offset(member)
        if number is None or not 0 < number <= len(self._at) or not wanted:
            return None
        at = int(self._at[number - 1])
        info = int(self._words[at + 1])
        if info >> 24 & 31 != _STRUCT:
            return None
        members = self._words[at + 3 : at + 3 + 3 * (info & 0xFFFF)]
        found = np.flatnonzero(members[:-2:3] == wanted)
        if not len(found):
            return None
        _, its_type, bits = members[3 * found[0] : 3 * found[0] + 3].tolist()
        return (bits & (0xFFFFFF if info >> 31 else 0xFFFFFFFF)) // 8, its_type


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
    """Returns type ids of the iterator's functions, by helper; None if it can't be used."""
    if not kernel_is_at_least(platform.release(), _KERNEL):
        return None
    numbers: dict[int, int] = {}
    with contextlib.suppress(UnsupportedError):
        types = KernelTypes()
        found = ((number, types.type_id(FUNCTION, name)) for number, name in FUNCTIONS.items())
        numbers = {number: own for number, own in found if own is not None}
    return numbers if len(numbers) == len(FUNCTIONS) else None


def with_iterators(code: bytes) -> bytes:
    """Returns BPF instructions that call the iterator in place of helpers that don't exist."""
    words = np.frombuffer(code, "<u8")
    helpers = np.where(words & 0xFF == _CALL, words >> 32, 0)
    if not np.isin(helpers, list(FUNCTIONS)).any():
        return code
    changed = words.copy()
    for helper, own in (type_numbers() or {}).items():
        changed[helpers == helper] = own << 32 | _PSEUDO_KFUNC_CALL << 12 | _CALL
    return changed.tobytes()
