"""The kernel's types, as bpftool shows them, and files that are none."""

import struct
from pathlib import Path

import pytest

from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.btf import FUNCTION, KernelTypes
from tracelloc.record.kernel.registers import thread_pointer_offset

NAMES = (
    b"\0task_struct\0pid\0tgid\0bpf_iter_task\0int\0thread\0thread_struct\0uw\0tp_value\0fsbase\0"
    b"cpu_context\0"
)


def name(text: str) -> int:
    return NAMES.index(b"\0" + text.encode() + b"\0") + 1


def file_of(types: bytes) -> bytes:
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(NAMES))
    return header + types + NAMES


def structure(title: str, *members: tuple[str, int, int], bitfields: bool = False) -> bytes:
    """A type; members have a name, a type's id and an offset in bytes."""
    flags = bitfields << 31 | 4 << 24 | len(members)
    head = struct.pack("<3I", name(title) if title else 0, flags, 4096)
    return head + b"".join(
        struct.pack("<3I", name(each), kind, 8 * offset) for each, kind, offset in members
    )


def kernel_types(path: Path, *types: bytes) -> KernelTypes:
    """Those of a file with an integer, and these."""
    path.write_bytes(file_of(struct.pack("<4I", name("int"), 1 << 24, 4, 32) + b"".join(types)))
    return KernelTypes(path)


@pytest.mark.parametrize("bitfields", [False, True])
def test_ids_and_offsets(tmp_path: Path, bitfields: bool) -> None:
    types = kernel_types(
        tmp_path / "btf",
        struct.pack("<3I", 0, 19 << 24 | 2, 8) + bytes(24),  # an enumeration of 64 bits
        structure("task_struct", ("pid", 1, 160), ("tgid", 1, 164), bitfields=bitfields),
        struct.pack("<3I", name("bpf_iter_task"), FUNCTION << 24, 1),
    )
    assert types.type_id(FUNCTION, "bpf_iter_task") == 4
    assert types.type_id(FUNCTION, "task_struct") is None
    assert types.type_id(FUNCTION, "none") is None
    assert types.offset_of("task_struct", "pid") == 160
    assert types.offset_of("task_struct", "tgid") == 164
    for names in (("task_struct", "int"), ("none", "pid")):
        with pytest.raises(UnsupportedError, match="of this kernel has no"):
            types.offset_of(*names)
    whole = (tmp_path / "btf").read_bytes()
    for length in range(24, len(whole)):  # damaged types end the walk
        (tmp_path / "btf").write_bytes(whole[:length])
        KernelTypes(tmp_path / "btf").type_id(FUNCTION, "bpf_iter_task")


@pytest.mark.parametrize("content", [b"", b"\x9f\xeb", bytes(24), b"\xff" * 64])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "btf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedError, match=r"types \(BTF\)"):
        KernelTypes(path)
    with pytest.raises(UnsupportedError, match="No such file"):
        KernelTypes(tmp_path / "none")


def test_where_the_kernel_keeps_thread_pointers(tmp_path: Path) -> None:
    arm = kernel_types(
        tmp_path / "arm",
        structure("", ("tp_value", 1, 0), ("cpu_context", 1, 8)),
        structure("thread_struct", ("cpu_context", 1, 0), ("uw", 2, 112)),
        structure("task_struct", ("thread", 3, 3000)),
    )
    other = kernel_types(
        tmp_path / "other",
        structure("thread_struct", ("cpu_context", 1, 0), ("fsbase", 1, 48)),
        structure("task_struct", ("thread", 2, 3000)),
    )
    assert thread_pointer_offset(arm, AARCH64.threads.kernel_field) == 3112
    assert thread_pointer_offset(other, X86_64.threads.kernel_field) == 3048
    assert thread_pointer_offset(other, AARCH64.threads.kernel_field) == 0
    assert thread_pointer_offset(arm, X86_64.threads.kernel_field) == 0
    assert thread_pointer_offset(arm, ("cpu_context", "tp_value")) == 0  # it is no structure
