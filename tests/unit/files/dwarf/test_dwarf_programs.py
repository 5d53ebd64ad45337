"""Line programs and lists of ranges written by hand: every instruction, version and kind."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tracelloc.files.dwarf import forms
from tracelloc.files.dwarf.forms import Budget, DwarfError, sleb, uleb
from tracelloc.files.dwarf.lineprogram import LineProgram
from tracelloc.files.dwarf.ranges import Range, list_at, unit_ranges
from tracelloc.files.elf.sections import ElfSection

STANDARD = bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1])
END = b"\0\x01\x01"


def section(data: bytes) -> ElfSection:
    return ElfSection(lambda offset, size: data[offset : offset + size], 0, len(data))


def number(value: int) -> bytes:
    """Unsigned LEB128."""
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def at(address: int) -> bytes:
    """DW_LNE_set_address."""
    return b"\0\x09\x02" + struct.pack("<Q", address)


@dataclass
class Source:
    """A line program in the making."""

    body: bytes
    version: int = 4
    counts: bytes = STANDARD
    unit: int = 1
    tables: bytes = b"inc\0\0a.c\0\0\0\0b.c\0\x01\0\0/abs/c.c\0\x01\0\0\0"

    def bytes(self) -> bytes:
        head = bytes([self.unit]) + b"\x01"
        # is_stmt; lines advance by -5 to 8
        head += b"\x01" + struct.pack("b", -5) + bytes([14, len(self.counts) + 1]) + self.counts
        head += self.tables
        rest = struct.pack("<H", self.version)
        if self.version >= 5:
            rest += b"\x08\0"
        rest += struct.pack("<I", len(head)) + head + self.body
        return struct.pack("<I", len(rest)) + rest

    def program(self, **sections: bytes) -> LineProgram:
        info: Any = SimpleNamespace(
            line=section(self.bytes()),
            line_str=section(sections.get("line_str", b"")),
            str=section(sections.get("str", b"")),
            budget=Budget(1 << 20),
        )
        return LineProgram(info, 0)


def special(address: int, line: int) -> bytes:
    return bytes([13 + (line + 5) + 14 * address])


BODY = (
    at(0x1000)
    + b"\x03\x09\x01"  # line += 9, row: 0x1000 10
    + special(4, 2)  # 0x1004 12
    + b"\x04\x02\x05\x2a\x02\x84\x01\x01"  # file 2, column 42, address += 132, row: 0x1088 12
    + b"\x08\x03\x7f\x01"  # address += 17, line -= 1, row: 0x1099 11
    + b"\x09\x00\x10\x06\x07\x0a\x0b\x0c\x03\x01"  # address += 4096, row: 0x2099 11
    + b"\0\x02\x04\x07\0\x03\x80ab\x01"  # discriminator, something of a vendor's, row again
    + b"\x03\xf5\xff\xff\xff\x0f\x02\x01\x01"  # line + 2^32 - 11 = 0, row: 0x209a 0
    + b"\x02\x06"
    + END  # up to 0x20a0
)


def test_version_5_and_instructions() -> None:
    """Directory 0 and file 0 count; MD5 and what else there may be is passed over."""
    strings = b"/comp\0inc\0a.c\0b.c\0"
    tables = (
        b"\x01\x01\x1f\x02" + struct.pack("<II", 0, 6)  # one column: a path in .debug_line_str
        # Four: a path in .debug_str, a directory, an MD5, something of a vendor's.
        + b"\x04\x01\x0e\x02\x0b\x05\x1e\x81\x40\x0f\x02"
        + struct.pack("<I", 10) + b"\0" + bytes(16) + b"\x85\x01"
        + struct.pack("<I", 14) + b"\x01" + bytes(16) + b"\x00"
    )  # fmt: skip
    program = Source(BODY, version=5, tables=tables).program(line_str=strings, str=strings)
    assert program.find(0x1000) == (1, 10)
    names = [program.file_name(n, "/elsewhere") for n in range(3)]
    assert names == ["/comp/a.c", "/elsewhere/inc/b.c", None]
    program = Source(BODY).program()
    expected = {
        0xFFF: None, 0x1000: (1, 10), 0x1003: (1, 10), 0x1004: (1, 12), 0x1087: (1, 12),
        0x1088: (2, 12), 0x1098: (2, 12), 0x1099: (2, 11), 0x2098: (2, 11), 0x2099: (2, 11),
        0x209A: (2, 0), 0x209F: (2, 0), 0x20A0: None, 0: None, (1 << 64) - 1: None,
    }  # fmt: skip
    assert {address: program.find(address) for address in expected} == expected
    assert program.ranges() == [(0x1000, 0x20A0)]
    # Instructions of 4 bytes, except for the one that counts in bytes.
    body = at(0x1000) + b"\x01" + special(2, 1) + b"\x02\x03\x01\x09\x05\x00\x01" + END
    program = Source(body, unit=4).program()
    assert program.ranges() == [(0x1000, 0x1019)]
    assert program.find(0x1007) == (1, 1)
    assert program.find(0x1008) == (1, 2)
    assert program.find(0x1013) == (1, 2)
    # Standard ones that nobody knows yet say how many numbers follow.
    counts = STANDARD + bytes([2, 0])
    body = at(0x1000) + b"\x0d\x85\x01\x07\x0e\x01\x0d\x00\x00\x0e\x02\x05" + END
    program = Source(body, counts=counts).program()
    assert program.find(0x1004) == (1, 1)
    assert program.find(0x1005) is None
    # A program may give its special instructions numbers that are standard elsewhere.
    body = at(0x1000) + bytes([10 + 5 + 1 + 14]) + bytes([10 + 5 + 14 * 3]) + END
    program = Source(body, counts=STANDARD[:9]).program()
    assert program.find(0x1001) == (1, 2)
    assert program.find(0x1003) == (1, 2)
    assert program.ranges() == [(0x1001, 0x1004)]


def test_sequences_and_numbers() -> None:
    """In any order; those of code that was left out and one without end do not count."""

    def one(address: int, line: int) -> bytes:
        return at(address) + b"\x03" + number(line - 1) + b"\x01\x02\x10" + END

    gone = b"".join(one(address, 50) for address in (0, 1, (1 << 64) - 1, (1 << 64) - 2))
    empty = at(0x2000) + END
    body = one(0x3000, 30) + gone + one(0x1000, 10) + empty + one(0x2000, 20) + empty
    program = Source(body + one(0x4000, 40)[: -len(END)]).program()
    assert program.ranges() == [(n << 12, (n << 12) + 16) for n in (1, 2, 3)]
    for n in (1, 2, 3):
        assert program.find((n << 12) + 15) == (1, n * 10)
        assert program.find((n << 12) + 16) is None
    assert program.find(0x4000) is None
    assert program.find(8) is None
    body = at(0x2000) + b"\x01" + at(0x1000) + special(0, 3) + at(0x3000) + END
    assert Source(body).program().find(0x2800) == (1, 1)
    # Counts that would take for ever, or rows that take no space.
    for tables in (
        b"\0" + number(1 << 60),
        b"\x01\x01\x19" + number(1 << 60),
        b"\x01\x01\x0b" + number(1 << 60),
    ):
        with pytest.raises(DwarfError):
            Source(END, version=5, tables=tables).program()
    for value in (0, 1, 127, 128, 300, 1 << 35, (1 << 64) - 1):
        data = b"x" + number(value)
        assert uleb(data, 1) == (value, len(data))
    assert sleb(b"\x7f", 0) == (-1, 1)
    assert sleb(b"\x80\x7f", 0) == (-128, 2)
    assert sleb(b"\xff\x00", 0) == (127, 2)
    with pytest.raises(IndexError):
        uleb(b"\x80\x80", 0)
    with pytest.raises(DwarfError):
        uleb(b"\x80" * 100 + b"\0", 0)
    assert old() == []
    assert old(0, 16, 0x20, 0x30) == [(BASE, BASE + 16), (BASE + 0x20, BASE + 0x30)]
    # A new base; an empty one; some of code that was left out.
    assert old(GONE, 0x5000, 0, 16, 8, 8, GONE, 0, 0x7000, 0x7001) == [
        (0x5000, 0x5010), (0x7000, 0x7001)
    ]  # fmt: skip
    assert old(1, 1, GONE - 1, GONE - 1, 16, 32) == [(BASE + 16, BASE + 32)]
    assert old(32, 16) == []
    values = [n * 16 + part for n in range(1000) for part in (2, 10)]
    assert old(*values) == [(BASE + n * 16 + 2, BASE + n * 16 + 10) for n in range(1000)]


BASE = 0x10000
GONE = (1 << 64) - 1


def quads(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def unit(version: int, lists: bytes, addresses: tuple[int, ...] = (), **root: Any) -> Any:
    """A unit with ``lists`` in the section that its version uses."""
    info = SimpleNamespace(
        ranges=section(lists) if version < 5 else None,
        rnglists=section(lists) if version >= 5 else None,
        budget=Budget(1 << 20),
        indexed_address=lambda index, base: dict(enumerate(addresses)).get(index),
    )
    facts = {"low_pc": BASE, "high_pc": None, "ranges": None, "address_base": 8, "ranges_base": 0}
    return SimpleNamespace(
        version=version,
        info=info,
        encoding=SimpleNamespace(offset_size=4),
        root=SimpleNamespace(**{**facts, **root}),
    )


def old(*values: int) -> list[Range]:
    return list_at(unit(4, quads(*values, 0, 0)), (forms.SEC_OFFSET, 0))


def test_entries_and_lists() -> None:
    """Version 5: addresses in place or by index, ends or lengths, offsets to a base."""
    lists = (
        b"\x04" + number(0x200) + number(0x300)
        + b"\x05" + quads(0x20000) + b"\x04\x10\x20"
        + b"\x06" + quads(0x30000, 0x30040)
        + b"\x07" + quads(0x40000) + number(0x80)
        + b"\x01\x02" + b"\x04\x01\x02"
        + b"\x02\x00\x01"
        + b"\x03\x01" + number(0x1000)
        + b"\x07" + quads(GONE) + b"\x10"
        + b"\x05" + quads(GONE) + b"\x04\x01\x02"
        + b"\x03\x63\x01"
        + b"\0"
    )  # fmt: skip
    found = list_at(unit(5, lists, (0x50000, 0x50008, 0x60000)), (forms.SEC_OFFSET, 0))
    assert found == [
        (BASE + 0x200, BASE + 0x300), (0x20010, 0x20020), (0x30000, 0x30040), (0x40000, 0x40080),
        (0x60001, 0x60002), (0x50000, 0x50008), (0x50008, 0x51008),
    ]  # fmt: skip
    # The index is into a table of offsets that count from the table.
    lists = b"head" + struct.pack("<II", 8, 12) + b"\x04\x01\x02\0" + b"\x04\x03\x09\0"
    made = unit(5, lists, ranges_base=4)
    assert list_at(made, (forms.RNGLISTX, 0)) == [(BASE + 1, BASE + 2)]
    assert list_at(made, (forms.RNGLISTX, 1)) == [(BASE + 3, BASE + 9)]
    assert unit_ranges(unit(4, b"", high_pc=BASE + 5)) == [(BASE, BASE + 5)]
    assert unit_ranges(unit(4, b"")) == []
    made = unit(4, quads(1, 2, 0, 0), high_pc=BASE + 5, ranges=(forms.SEC_OFFSET, 0))
    assert unit_ranges(made) == [(BASE + 1, BASE + 2)]
    for low in (0, 1, GONE, GONE - 1):
        assert unit_ranges(unit(4, b"", low_pc=low, high_pc=low + 16)) == []
