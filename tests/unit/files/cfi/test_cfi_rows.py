"""Rows: what fits into 64 bits, what doesn't and why, and the same in C."""

import re
from enum import EnumMeta

import pytest

from tests.commands import c_values
from tests.unit.unwindrows import (
    BP_AT_BP,
    BP_UNCHANGED,
    FRAME_POINTER,
    OUTERMOST,
    RBP,
    RBX,
    RIP,
    RSP,
    SIGNAL_FRAME,
    SIGNAL_IP,
    Kind,
    ReturnPlace,
    Row,
    decode,
)
from tracelloc import probes
from tracelloc.files.cfi import core
from tracelloc.files.cfi.core import RuleSet
from tracelloc.files.cfi.walk import Reason

Rule = tuple[int, int, bytes]

HEADER = (probes.directory() / "row.h").read_text()
ENUMS: list[tuple[str, EnumMeta]] = [
    ("ROW_REASON_", Reason), ("ROW_", Kind), ("ROW_RA_", ReturnPlace),
]  # fmt: skip

RETURN = (core.OFFSET, -8, b"")
AT_BP = (core.EXPRESSION, 0, b"\x76\x00")
PLT = bytes.fromhex("770880003f1a3b2a332422")


def frame(
    register: int, offset: int, expression: bytes = b"", *, signal: bool = False,
    ra: Rule | None = RETURN, **saved: Rule,
) -> RuleSet:  # fmt: skip
    registers = {{"bp": RBP, "sp": RSP, "bx": RBX}[name]: rule for name, rule in saved.items()}
    if ra is not None:
        registers[RIP] = ra
    return RuleSet(register, offset, expression, registers, is_signal=signal)


def saved(offset: int) -> Rule:
    return core.OFFSET, offset, b""


ENCODABLE = [
    (frame(RSP, 8), Row(Kind.SP, 0, BP_UNCHANGED, 8)),
    (frame(RSP, 160, bp=saved(-48), bx=saved(-56)), Row(Kind.SP, 0, -48, 160)),
    (frame(RSP, (1 << 31) - 1, bp=saved(-(1 << 15))), Row(Kind.SP, 0, -(1 << 15), (1 << 31) - 1)),
    (frame(RSP, -(1 << 31), bp=(core.SAME, 0, b"")), Row(Kind.SP, 0, 0, -(1 << 31))),
    (frame(RBP, 16, bp=saved(-16)), Row(Kind.BP, 0, -16, 16)),
    (frame(RBP, 16, bp=saved(32766)), Row(Kind.BP, 0, 32766, 16)),
    (frame(-1, 0, b"\x76\x78\x06", bp=AT_BP), Row(Kind.REALIGNED, 0, BP_AT_BP, -8)),
    (frame(-1, 0, b"\x76\x80\x7f\x06", bp=AT_BP), Row(Kind.REALIGNED, 0, BP_AT_BP, -128)),
    (frame(5, 1 << 40, ra=(core.UNDEFINED, 0, b"")), Row(Kind.END, 0, 0, 0)),
    (SIGNAL_FRAME, Row(Kind.SIGNAL, 0, 120, 160)),
    (FRAME_POINTER, Row(Kind.FRAME_POINTER, 0, -16, 16)),
]


UNENCODABLE = [
    (frame(RBX, 8), Reason.CFA_REGISTER),
    (frame(-1, 0), Reason.CFA_REGISTER),
    (frame(-1, 0, b"\x73\x00"), Reason.CFA_EXPRESSION),
    (frame(-1, 0, b"\x77\x28\x06"), Reason.CFA_EXPRESSION),
    (frame(-1, 0, b"\x76\x06"), Reason.CFA_EXPRESSION),
    (frame(-1, 0, b"\x76\x80\x06"), Reason.CFA_EXPRESSION),
    (frame(-1, 0, b"\x76\x08\x31\x06"), Reason.CFA_EXPRESSION),
    (frame(-1, 0, PLT[:-1] + b"\x23"), Reason.CFA_EXPRESSION),
    (frame(RSP, 1 << 31), Reason.CFA_OFFSET),
    (frame(RSP, (1 << 63) + 8), Reason.CFA_OFFSET),
    (frame(RSP, 8, ra=None), Reason.RETURN_ADDRESS),
    (frame(RSP, 8, ra=saved(168)), Reason.RETURN_ADDRESS),
    (frame(RSP, 8, ra=(core.REGISTER, 2, b"")), Reason.RETURN_ADDRESS),
    (frame(RSP, 8, bp=(core.REGISTER, 2, b"")), Reason.SAVED_BP),
    (frame(RSP, 8, bp=(core.UNDEFINED, 0, b"")), Reason.SAVED_BP),
    (frame(RSP, 8, bp=saved(0)), Reason.SAVED_BP),
    (frame(RSP, 8, bp=saved(1)), Reason.SAVED_BP),
    (frame(RSP, 8, bp=saved(1 << 15)), Reason.SAVED_BP),
    (frame(RSP, 8, bp=(core.EXPRESSION, 0, b"\x76\x08")), Reason.SAVED_BP),
    (frame(RSP, 8, sp=saved(-24)), Reason.CALLER_SP),
    (frame(RSP, 8, signal=True), Reason.SIGNAL_FRAME),
    (frame(-1, 0, b"\x77\xa8\x01\x06", signal=True, ra=RETURN), Reason.SIGNAL_FRAME),
]


def test_rows_and_reasons() -> None:
    for given, row in ENCODABLE:
        assert decode(given.row(0)) == row, given
        assert 0 < given.row(0) < 1 << 64
        assert row.reason is None
    for given, reason in UNENCODABLE:
        row = decode(given.row(0))
        assert row == Row(Kind.UNENCODABLE, reason, 0, 0), given
        assert row.reason is reason
    # In a PLT, before the push of its second instruction, the frame is one word smaller.
    plt = frame(-1, 0, PLT)
    for low in range(16):
        assert decode(plt.row(0x1230 + low)) == Row(Kind.SP, 0, 0, 16 if low >= 11 else 8)
    assert decode(OUTERMOST.row(15)).kind is Kind.END


@pytest.fixture(scope="module")
def c_side(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Values of the header as the C compiler sees them, and rows taken apart by it."""
    wanted = [prefix + member.name for prefix, enum in ENUMS for member in enum]
    wanted += ["ROW_BP_UNCHANGED", "ROW_BP_AT_BP", "ROW_SIGNAL_IP"]
    for given, _ in [*ENCODABLE, *UNENCODABLE]:
        wanted += [f"ROW_{field}({given.row(0)}ULL)" for field in FIELDS]
    return c_values(tmp_path_factory.mktemp("row"), "row.h", wanted)


FIELDS = ("KIND", "DETAIL", "BP_SLOT", "CFA_OFFSET")


def test_the_header_says_the_same(c_side: dict[str, int]) -> None:
    for prefix, enum in ENUMS:
        for member in enum:
            assert c_side[prefix + member.name] == member.value
    assert c_side["ROW_BP_UNCHANGED"] == BP_UNCHANGED
    assert c_side["ROW_BP_AT_BP"] == BP_AT_BP
    assert c_side["ROW_SIGNAL_IP"] == SIGNAL_IP
    in_header = re.findall(r"^\t(ROW_\w+) = \d+", HEADER, re.MULTILINE)
    assert sorted(in_header) == sorted(p + member.name for p, enum in ENUMS for member in enum)
    for given, _ in [*ENCODABLE, *UNENCODABLE]:
        row = given.row(0)
        assert [c_side[f"ROW_{field}({row}ULL)"] for field in FIELDS] == list(decode(row))
