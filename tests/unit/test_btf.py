"""The kernel's types, as bpftool shows them, and files that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.btf import FUNCTION, KernelTypes

NAMES = b"\0task_struct\0pid\0tgid\0bpf_iter_task\0int\0"


def name(text: str) -> int:
    return NAMES.index(b"\0" + text.encode() + b"\0") + 1


def image(bitfields: bool) -> bytes:
    """A struct with two members after an integer, an enumeration of 64 bits, and a function."""
    kind_flag = bitfields << 31
    types = struct.pack("<4I", name("int"), 1 << 24, 4, 32)
    types += struct.pack("<3I", 0, 19 << 24 | 2, 8) + bytes(24)
    types += struct.pack("<3I", name("task_struct"), kind_flag | 4 << 24 | 2, 4096)
    types += struct.pack("<6I", name("pid"), 1, 1280, name("tgid"), 1, 1312)
    types += struct.pack("<3I", name("bpf_iter_task"), FUNCTION << 24, 1)
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(NAMES))
    return header + types + NAMES


@pytest.mark.parametrize("bitfields", [False, True])
def test_ids_and_offsets(tmp_path: Path, bitfields: bool) -> None:
    path = tmp_path / "btf"
    path.write_bytes(image(bitfields))
    types = KernelTypes(path)
    assert types.type_id(FUNCTION, "bpf_iter_task") == 4
    assert types.type_id(FUNCTION, "task_struct") is None
    assert types.type_id(FUNCTION, "none") is None
    assert types.member_offset("task_struct", "pid") == 160
    assert types.member_offset("task_struct", "tgid") == 164
    for names in (("task_struct", "int"), ("none", "pid")):
        with pytest.raises(UnsupportedError, match="of this kernel has no"):
            types.member_offset(*names)


@pytest.mark.parametrize("content", [b"", b"\x9f\xeb", bytes(24), b"\xff" * 64])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "btf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedError, match=r"types \(BTF\)"):
        KernelTypes(path)
    with pytest.raises(UnsupportedError, match="No such file"):
        KernelTypes(tmp_path / "none")


def test_damaged_types_end_the_walk(tmp_path: Path) -> None:
    whole = image(False)
    for length in range(24, len(whole)):
        path = tmp_path / "btf"
        path.write_bytes(whole[:length])
        KernelTypes(path).type_id(FUNCTION, "bpf_iter_task")
