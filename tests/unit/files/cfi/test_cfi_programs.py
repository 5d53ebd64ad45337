"""Programs of call-frame information made by hand: every instruction, and nonsense."""

import struct
import time
from typing import Any

import numpy as np
import pytest

from tests.unit.unwindrows import RBP, RIP, decode
from tracelloc.files.cfi import core
from tracelloc.files.cfi.core import MASK, OFFSET, Entries, read_header
from tracelloc.files.cfi.unwindsections import FdeIndex, make_index, scan
from tracelloc.files.cfi.walk import CfiError, Reason

SECTION = 0x10000
CODE = 0x4000
SIZE = 0x1000
# def_cfa rsp+8; the return address at CFA-8: what every compiler starts from.
START = b"\x0c\x07\x08\x90\x01"


def entry(body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def cie(
    initial: bytes = START, *, version: int = 1, augmentation: bytes = b"zR", data: bytes = b"\x1b",
    aligns: bytes = b"\x01\x78", number: int = 0,
) -> bytes:  # fmt: skip
    extra = b"\x08\x00" if version == 4 else b""
    length = bytes([len(data)]) if augmentation.startswith(b"z") else b""
    head = struct.pack("<IB", number, version) + augmentation + b"\0" + extra
    return entry(head + aligns + b"\x10" + length + data + initial)


def fde(program: bytes, at: int, code: int = CODE, size: int = SIZE) -> bytes:
    """An FDE at an offset of the section, of the CIE at offset 0."""
    return entry(struct.pack("<IiI", at + 4, code - (SECTION + at + 8), size) + b"\0" + program)


def section(program: bytes, size: int = SIZE, **options: object) -> tuple[Entries, int]:
    first = cie(**options)  # type: ignore[arg-type]
    whole = first + fde(program, len(first), CODE, size)
    return Entries(whole, SECTION, is_eh=True), len(first)


Found = tuple[int, int, bytes, dict[int, tuple[int, int, bytes]]]


def state_at(entries: Entries, offset: int, last: int) -> Found:
    """The rules so many bytes into the function."""
    found = entries.rules(offset, CODE + last)
    return found.cfa_register, found.cfa_offset, found.cfa_expression, found.registers


def run(program: bytes, last: int = SIZE - 1, **options: object) -> Found:
    return state_at(*section(program, max(SIZE, last + 1), **options), last)


def scanned(entries: Entries) -> list[int]:
    """The offsets of all FDEs, in the order of the section."""
    starts, offsets = np.zeros(9, np.uint64), np.zeros(9, np.int64)
    return offsets[: entries.scan(starts, offsets)].tolist()


RA = {RIP: (OFFSET, -8, b"")}

INSTRUCTIONS = [
    ("nop", b"\0\0", (7, 8, b"", RA)),
    ("offset", b"\x86\x02", (7, 8, b"", {**RA, 6: (OFFSET, -16, b"")})),
    ("offset, two bytes", b"\x86\x80\x01", (7, 8, b"", {**RA, 6: (OFFSET, -1024, b"")})),
    ("offset_extended", b"\x05\x03\x03", (7, 8, b"", {**RA, 3: (OFFSET, -24, b"")})),
    ("offset_extended_sf", b"\x11\x03\x7d", (7, 8, b"", {**RA, 3: (OFFSET, 24, b"")})),
    ("GNU_negative_offset", b"\x2f\x03\x03", (7, 8, b"", {**RA, 3: (OFFSET, 24, b"")})),
    ("restore to nothing", b"\x86\x02\xc6", (7, 8, b"", RA)),
    ("restore to the CIE's", b"\x90\x05\xd0", (7, 8, b"", RA)),
    ("restore_extended", b"\x86\x02\x06\x06", (7, 8, b"", RA)),
    ("undefined", b"\x07\x10", (7, 8, b"", {16: (core.UNDEFINED, 0, b"")})),
    ("same_value", b"\x08\x06", (7, 8, b"", {**RA, 6: (core.SAME, 0, b"")})),
    ("register", b"\x09\x10\x0b", (7, 8, b"", {16: (core.REGISTER, 11, b"")})),
    ("val_offset", b"\x14\x07\x02", (7, 8, b"", {**RA, 7: (core.VAL_OFFSET, -16, b"")})),
    ("val_offset_sf", b"\x15\x07\x7e", (7, 8, b"", {**RA, 7: (core.VAL_OFFSET, 16, b"")})),
    (
        "expression",
        b"\x10\x06\x02\x76\x00",
        (7, 8, b"", {**RA, 6: (core.EXPRESSION, 0, b"\x76\x00")}),
    ),
    (
        "val_expression",
        b"\x16\x06\x01\x30",
        (7, 8, b"", {**RA, 6: (core.VAL_EXPRESSION, 0, b"\x30")}),
    ),
    ("def_cfa", b"\x0c\x06\x10", (6, 16, b"", RA)),
    ("def_cfa_sf", b"\x12\x06\x7e", (6, 16, b"", RA)),
    ("def_cfa_register", b"\x0d\x06", (6, 8, b"", RA)),
    ("def_cfa_offset", b"\x0e\x90\x02", (7, 272, b"", RA)),
    ("def_cfa_offset_sf", b"\x13\x70", (7, 128, b"", RA)),
    ("def_cfa_expression", b"\x0f\x03\x76\x78\x06", (7, 8, b"\x76\x78\x06", RA)),
    ("register ends expression", b"\x0f\x01\x30\x0d\x06", (6, 8, b"", RA)),
    ("remember", b"\x0a\x86\x02\x0e\x10\x0d\x06\x0b", (7, 8, b"", RA)),
    ("remember twice", b"\x0a\x0e\x10\x0a\x0e\x18\x0b\x0b", (7, 8, b"", RA)),
    ("GNU_args_size", b"\x2e\x20", (7, 8, b"", RA)),
    ("vector registers", b"\x05\x11\x02\x91\x02\x06\x21", (7, 8, b"", RA)),
    ("advance_loc", b"\x45\x0e\x10", (7, 16, b"", RA)),
    ("advance_loc1", b"\x02\xff\x0e\x10", (7, 16, b"", RA)),
    ("advance_loc2", b"\x03\xff\x0e\x0e\x10", (7, 16, b"", RA)),
    ("advance_loc4", b"\x04\xff\x0e\0\0\x0e\x10", (7, 16, b"", RA)),
    ("advance_loc8", b"\x1d\xff\x0e\0\0\0\0\0\0\x0e\x10", (7, 16, b"", RA)),
]


@pytest.mark.parametrize(
    ("program", "state"), [i[1:] for i in INSTRUCTIONS], ids=[i[0] for i in INSTRUCTIONS]
)
def test_instructions(program: bytes, state: Found) -> None:
    assert run(program) == state


def test_where_states_hold() -> None:
    """Each state holds from its location on, to the byte."""
    program = (
        b"\x41\x0e\x10\x02\x02\x0e\x18\x03\x04\x00\x0e\x20\x04\x08\x00\x00\x00\x0e\x28"
        b"\x1d\x10\x00\x00\x00\x00\x00\x00\x00\x0e\x30"
    )  # fmt: skip
    changes = {0: 8, 1: 16, 3: 24, 7: 32, 15: 40, 31: 48}
    expected = 0
    for last in range(64):
        expected = changes.get(last, expected)
        assert run(program, last)[1] == expected
    entries, at = section(program)
    wanted = np.arange(CODE, CODE + 64, dtype=np.uint64)
    rows = np.zeros(64, np.uint64)
    entries.rows(np.array([CODE], np.uint64), np.array([at]), wanted, rows)
    expected = [max(changes[start] for start in changes if start <= n) for n in range(64)]
    assert [decode(row).cfa_offset for row in rows.tolist()] == expected
    assert run(b"\x42\x0e\x10", 7, aligns=b"\x04\x70")[1] == 8
    assert run(b"\x42\x0e\x10", 8, aligns=b"\x04\x70")[1] == 16
    assert run(b"\x86\x02", aligns=b"\x04\x70")[3][RBP] == (OFFSET, -32, b"")
    # The new location is written as a pointer.
    first = cie()
    at = len(first)
    target = struct.pack("<i", CODE + 5 - (SECTION + at + 18))
    entries = Entries(first + fde(b"\x01" + target + b"\x0e\x10", at), SECTION, is_eh=True)
    assert [state_at(entries, at, last)[1] for last in (4, 5)] == [8, 16]
    backwards = struct.pack("<i", CODE + 5 - (SECTION + at + 19))
    entries = Entries(first + fde(b"\x46\x01" + backwards, at), SECTION, is_eh=True)
    assert state_at(entries, at, 5)[1] == 8
    with pytest.raises(CfiError):
        entries.rules(at, CODE + 6)


DAMAGED: dict[str, dict[str, Any]] = {
    "uleb without an end": {"program": b"\x0e" + b"\x80" * 40},
    "restore_state of nothing": {"program": b"\x0b"},
    "unknown instruction": {"program": b"\x3f"}, "window_save": {"program": b"\x2d"},
    "advance_loc4 cut short": {"program": b"\x04\0"},
    "expression too long": {"program": b"\x0f\x40\x30"},
    "empty expression": {"program": b"\x0f\x00"}, "remember bomb": {"program": b"\x0a" * 300},
    "a CIE that advances": {"initial": START + b"\x41\x0e\x10"},
    "version": {"version": 2}, "number": {"number": 7},
    "augmentation": {"augmentation": b"x", "data": b""},
    "long augmentation": {"augmentation": b"a" * 70, "data": b""},
    "personality cut short": {"augmentation": b"zP", "data": b"\x1b\0"},
    "kind of personality": {"augmentation": b"zPR", "data": b"\x0f\0"},
    "indirect": {"data": b"\x9b"}, "relative to text": {"data": b"\x2b"},
    "relative to a function": {"data": b"\x4b"}, "alignment": {"aligns": b"\x80" * 20},
}  # fmt: skip


@pytest.mark.parametrize("options", DAMAGED.values(), ids=DAMAGED)
def test_damaged(options: dict[str, Any]) -> None:
    with pytest.raises(CfiError) as caught:
        run(**{"program": b"", **options})
    assert caught.value.reason is Reason.DAMAGED


def test_long_programs_end_soon() -> None:
    began = time.process_time()
    for piece in (b"\x00", b"\x41", b"\x0a\x0b", b"\x86\x02", b"\x0a", b"\x80\x80\x01"):
        program = piece * ((1 << 18) // len(piece) - 8)
        try:
            run(program, (1 << 31) - 2)
        except CfiError as error:
            assert error.reason is Reason.DAMAGED  # noqa: PT017
    with pytest.raises(CfiError) as caught:
        run(bytes(1 << 20))
    assert caught.value.reason is Reason.TOO_LONG
    with pytest.raises(CfiError) as caught:
        run(b"", initial=bytes(1 << 20))
    assert caught.value.reason is Reason.TOO_LONG
    with pytest.raises(CfiError):
        run(b"\x0e" + b"\xff" * (1 << 20))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("augmentation", "data", "pointers", "is_signal"),
    [
        (b"zR", b"\x1b", 0x1B, False), (b"zRS", b"\x1b", 0x1B, True),
        (b"zPLR", b"\x9b\1\2\3\4\x1b\x1b", 0x1B, False),
        (b"zPR", b"\x00" + bytes(8) + b"\x1b", 0x1B, False), (b"zPR", b"\xff\x1b", 0x1B, False),
        (b"zRB", b"\x1b", 0x1B, False), (b"zR?", b"\x1b\1\2\3", 0x1B, False),
        (b"z", b"", 0x00, False), (b"zR", b"\x03", 0x03, False),
    ],
)  # fmt: skip
def test_augmentations(augmentation: bytes, data: bytes, pointers: int, is_signal: bool) -> None:
    first = cie(augmentation=augmentation, data=data)
    form = {0x00: "<QQ", 0x03: "<II", 0x1B: "<iI"}[pointers]
    place = SECTION + len(first) + 8 if pointers == 0x1B else 0
    body = struct.pack("<I", len(first) + 4) + struct.pack(form, CODE - place, SIZE)
    entries = Entries(first + entry(body + b"\0\x86\x02"), SECTION, is_eh=True)
    assert entries.fde(len(first)) == (CODE, SIZE)
    found = entries.rules(len(first), CODE)
    assert found.is_signal == is_signal
    assert found.registers == {**RA, RBP: (OFFSET, -16, b"")}


def test_wide_and_old_entries() -> None:
    """Without a z: gcc 2's ``eh``, whose pointer comes before everything else, and none."""
    old = entry(struct.pack("<IB", 0, 1) + b"eh\0" + bytes(8) + b"\x01\x78\x10" + START)
    for first in (old, cie(augmentation=b"", data=b"")):
        body = struct.pack("<IQQ", len(first) + 4, CODE, SIZE) + b"\x0e\x10"
        entries = Entries(first + entry(body), SECTION, is_eh=True)
        assert entries.fde(len(first)) == (CODE, SIZE)
        assert state_at(entries, len(first), 0) == (7, 16, b"", RA)
    # Lengths of 8 bytes; the CIE pointer keeps 4 in .eh_frame, grows in .debug_frame.
    body = cie()[4:]
    first = struct.pack("<IQ", 0xFFFFFFFF, len(body)) + body
    inside = struct.pack("<IiI", len(first) + 12, CODE - (SECTION + len(first) + 16), SIZE)
    inside += b"\0\x0e\x10"
    data = first + struct.pack("<IQ", 0xFFFFFFFF, len(inside)) + inside
    entries = Entries(data, SECTION, is_eh=True)
    assert entries.fde(len(first)) == (CODE, SIZE)
    assert state_at(entries, len(first), 0)[1] == 16
    head = b"\xff" * 8 + b"\x04\0\x08\x00\x01\x78\x10" + START
    first = struct.pack("<IQ", 0xFFFFFFFF, len(head)) + head
    inside = struct.pack("<QQQ", 0, CODE, SIZE) + b"\x0e\x10"
    data = first + struct.pack("<IQ", 0xFFFFFFFF, len(inside)) + inside
    entries = Entries(data, 0, is_eh=False)
    assert scanned(entries) == [len(first)]
    assert entries.fde(len(first)) == (CODE, SIZE)
    assert state_at(entries, len(first), 0)[1] == 16


def test_augmentation_data_longer_than_127_bytes_or_its_entry() -> None:
    entries, at = section(b"\x0e\x10")
    for length_at in (15, at + 16):  # of the CIE's, and of the FDE's
        for length in (0x3F, 0x7F):
            data = bytearray(entries.data + bytes(256))
            assert data[length_at] in (0, 1)
            data[length_at] = length
            with pytest.raises(CfiError) as caught:
                Entries(bytes(data), SECTION, is_eh=True).rules(at, CODE)
            assert caught.value.reason is Reason.DAMAGED
    # More than 127 bytes of it: its length takes two.
    first = cie()
    body = struct.pack("<IiI", len(first) + 4, CODE - (SECTION + len(first) + 8), SIZE)
    body += b"\xc8\x01" + bytes(200) + b"\x0e\x10"
    assert state_at(Entries(first + entry(body), SECTION, is_eh=True), len(first), 0)[1] == 16


def test_entries_that_lead_nowhere() -> None:
    """An FDE whose CIE is itself, another FDE, or outside."""
    for distance in (4, -4, 1 << 31, 24, 0xFFFFFF00):
        body = struct.pack("<IiI", distance & 0xFFFFFFFF, 0, SIZE) + bytes(8)
        entries = Entries(entry(body) * 2, SECTION, is_eh=True)
        for at in (0, 24, -1, 1 << 40, 1):
            with pytest.raises(CfiError):
                entries.fde(at)
        assert scanned(entries) == []
    # Cut anywhere, or of lengths near the largest number: they are not there.
    entries, at = section(b"\x0e\x10")
    for size in range(at, len(entries.data)):
        cut = Entries(entries.data[:size], SECTION, is_eh=True)
        with pytest.raises(CfiError):
            cut.fde(at)
        assert scanned(cut) == []
    for length in (0, 3, 1 << 20, (1 << 63) - 1, 1 << 63, MASK - 11, MASK):
        wide = entries.data[:at] + struct.pack("<IQ", 0xFFFFFFFF, length) + entries.data[at + 4 :]
        with pytest.raises(CfiError) as caught:
            Entries(wide, SECTION, is_eh=True).fde(at)
        assert caught.value.reason is Reason.DAMAGED


def test_index_and_scan() -> None:
    """Linkers join tables with their ends in the middle; a megabyte of zeros costs nothing."""
    first = cie()
    second = fde(b"\x0e\x10", len(first))
    gap = len(first) + len(second) + (1 << 20)
    third = fde(b"\x0e\x18", gap, CODE + SIZE)
    empty = fde(b"", gap + len(third), CODE + 2 * SIZE, 0)
    data = first + second + bytes(1 << 20) + third + empty + bytes(4)
    assert scanned(Entries(data, SECTION, is_eh=True)) == [len(first), gap]
    first = cie()
    starts = [CODE, CODE + 0x100, CODE + 0x800]
    data, offsets = first, []
    for start in starts:
        offsets.append(len(data))
        data += fde(b"", len(data), start, 0x80)
    entries = Entries(data, SECTION, is_eh=True)
    address = SECTION - 0x1000
    pairs = [(s, SECTION + o) for s, o in zip(starts, offsets, strict=True)]
    good = header(pairs, address)
    assert read_header(good, address) == (SECTION, 3, 12)

    def check(index: FdeIndex, *, is_scanned: bool) -> None:
        assert index.is_scanned == is_scanned
        assert len(index) == 3
        assert [index.find(a) for a in (0, CODE - 1)] == [None, None]
        assert [index.find(s + 5) for s in starts] == offsets
        assert index.find(1 << 63) == offsets[2]

    check(make_index(entries, good, address), is_scanned=False)
    for bad in (
        b"", b"\x01\x1b", b"\x02" + good[1:], good[:-1], header(pairs[::-1], address),
        header(pairs, address, b"\x1b\x03\x3c"), header(pairs, address, b"\xff\x03\x3b"),
        header(pairs, address, b"\x1b\xff\x3b"), header([], address),
    ):  # fmt: skip
        check(make_index(entries, bad, address), is_scanned=True)
    check(scan(entries), is_scanned=True)


def header(pairs: list[tuple[int, int]], address: int, kinds: bytes = b"\x1b\x03\x3b") -> bytes:
    data = b"\x01" + kinds + struct.pack("<iI", SECTION - address - 4, len(pairs))
    return data + b"".join(struct.pack("<ii", a - address, b - address) for a, b in pairs)


def pointer(data: bytes, kind: int, address: int) -> tuple[int, int] | None:
    """What a header says where ``.eh_frame`` is, and where that is said to its end."""
    found = read_header(b"\x01" + bytes([kind, 0xFF, 0xFF]) + data, address)
    return None if found is None else (found[0], found[2])


def test_pointers_and_numbers() -> None:
    data = b"\x12\x34\x56\x78\x9a\xbc\xde\xf0"
    value = int.from_bytes(data, "little")
    for kind, expected, size in (
        (0x00, value, 8), (0x02, 0x3412, 2), (0x03, 0x78563412, 4), (0x04, value, 8),
        (0x08, value, 8), (0x0A, 0x3412, 2), (0x0B, 0x78563412, 4), (0x0C, value, 8),
        (0x01, 0x12, 1), (0x09, 0x12, 1), (0x1B, 0x78563412 + 0x1008, 4),
        (0x3B, 0x78563412 + 0x1004, 4), (0x9B, 0x78563412 + 0x1008, 4), (0x50, value, 8),
    ):  # fmt: skip
        assert pointer(data, kind, 0x1004) == (expected, 4 + size)
        padding = bytes(6) if kind == 0x50 else b""  # up to the next multiple of 8
        assert run(b"", augmentation=b"zPR", data=bytes([kind]) + padding + data[:size] + b"\x1b")
        assert pointer(data[: size - 1], kind, 0x1004) is None
    for kind, expected in ((0x0A, -2), (0x0B, -65538), (0x0C, -65538), (0x09, -2)):
        assert pointer(b"\xfe\xff\xfe" + b"\xff" * 5, kind, 0) in (
            (expected & MASK, 6), (expected & MASK, 8), (expected & MASK, 12), None,
        )  # fmt: skip
    assert pointer(bytes(4) + data, 0x50, 0x1000) == (value, 16)
    for kind in (0x0F, 0x05, 0x2B, 0x4B):
        assert pointer(data, kind, 0x1004) is None
    # Bytes as the operands of def_cfa_offset and def_cfa_offset_sf.
    for data, value in (
        (b"\xe5\x8e\x26", 624485), (b"\x7f", 127), (b"\x80\x80\x80\x00", 0),
        (b"\xff" * 8 + b"\x7f", (1 << 63) - 1), (b"\x81" + b"\x80" * 14 + b"\x00", 1),
        (b"\x81" + b"\x80" * 14 + b"\x01", 1),
    ):  # fmt: skip
        assert run(b"\x0e" + data)[1] == value
    for data, value in (
        (b"\xc0\xbb\x78", -123456), (b"\x80\x7f", -128), (b"\x3f", 63), (b"\x40", -64),
        (b"\xff" * 9 + b"\x7f", -1), (b"\xfe" + b"\xff" * 14 + b"\x7f", -2),
    ):  # fmt: skip
        assert run(b"\x13" + data, aligns=b"\x01\x01")[1] == value
    for operation in (b"\x0e", b"\x13"):
        for data in (b"\x80" * 16 + b"\0", b"\x80" * 100 + b"\0"):
            with pytest.raises(CfiError):
                run(operation + data)
