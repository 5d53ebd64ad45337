"""Lists of address ranges written by hand, of every kind there is."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_dwarf_programs import number, section
from tracelloc.files.dwarf import forms
from tracelloc.files.dwarf.forms import Budget, DwarfError
from tracelloc.files.dwarf.ranges import Range, list_at, unit_ranges

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


def test_pairs() -> None:
    assert old() == []
    assert old(0, 16, 0x20, 0x30) == [(BASE, BASE + 16), (BASE + 0x20, BASE + 0x30)]
    # A new base; an empty one; some of code that was left out.
    assert old(GONE, 0x5000, 0, 16, 8, 8, GONE, 0, 0x7000, 0x7001) == [
        (0x5000, 0x5010), (0x7000, 0x7001)
    ]  # fmt: skip
    assert old(1, 1, GONE - 1, GONE - 1, 16, 32) == [(BASE + 16, BASE + 32)]
    assert old(32, 16) == []


def test_many_pairs() -> None:
    values = [n * 16 + part for n in range(1000) for part in (2, 10)]
    assert old(*values) == [(BASE + n * 16 + 2, BASE + n * 16 + 10) for n in range(1000)]


def test_entries() -> None:
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


def test_lists_by_index() -> None:
    """The index is into a table of offsets that count from the table."""
    table = struct.pack("<II", 8, 12)
    lists = b"head" + table + b"\x04\x01\x02\0" + b"\x04\x03\x09\0"
    made = unit(5, lists, ranges_base=4)
    assert list_at(made, (forms.RNGLISTX, 0)) == [(BASE + 1, BASE + 2)]
    assert list_at(made, (forms.RNGLISTX, 1)) == [(BASE + 3, BASE + 9)]


def test_units() -> None:
    assert unit_ranges(unit(4, b"", high_pc=BASE + 5)) == [(BASE, BASE + 5)]
    assert unit_ranges(unit(4, b"")) == []
    made = unit(4, quads(1, 2, 0, 0), high_pc=BASE + 5, ranges=(forms.SEC_OFFSET, 0))
    assert unit_ranges(made) == [(BASE + 1, BASE + 2)]
    for low in (0, 1, GONE, GONE - 1):
        assert unit_ranges(unit(4, b"", low_pc=low, high_pc=low + 16)) == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("lists", [b"", b"\x09" * 7, b"\x04\x01\x02" * 3, b"\x07" * 400])
def test_damaged(version: int, lists: bytes) -> None:
    with pytest.raises((DwarfError, IndexError, struct.error)):
        list_at(unit(version, lists), (forms.SEC_OFFSET, 0))
    with pytest.raises(DwarfError):
        list_at(unit(version, lists), (forms.EXPRLOC, b""))
