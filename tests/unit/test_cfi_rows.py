"""Rows: what fits into 64 bits, what doesn't and why, and the same in C."""

from __future__ import annotations

import json
import re
import subprocess
from enum import EnumMeta

import pytest

from tracelloc import probes
from tracelloc.cfi import rows, rules
from tracelloc.cfi.encoding import Reason
from tracelloc.cfi.rows import BP_AT_BP, BP_UNCHANGED, Row, StepKind, decode, encode, pack
from tracelloc.cfi.rules import FRAME_POINTER, RBP, RBX, RIP, RSP, SIGNAL_FRAME, Rule, RuleSet

HEADER = (probes.directory() / "row.h").read_text()
ENUMS: list[tuple[str, EnumMeta]] = [("ROW_REASON_", Reason), ("ROW_", StepKind)]

RETURN = (rules.OFFSET, -8, b"")
AT_BP = (rules.EXPRESSION, 0, b"\x76\x00")
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
    return rules.OFFSET, offset, b""


ENCODABLE = [
    (frame(RSP, 8), Row(StepKind.SP, 0, BP_UNCHANGED, 8)),
    (frame(RSP, 160, bp=saved(-48), bx=saved(-56)), Row(StepKind.SP, 0, -48, 160)),
    (
        frame(RSP, (1 << 31) - 1, bp=saved(-(1 << 15))),
        Row(StepKind.SP, 0, -(1 << 15), (1 << 31) - 1),
    ),
    (frame(RSP, -(1 << 31), bp=(rules.SAME, 0, b"")), Row(StepKind.SP, 0, 0, -(1 << 31))),
    (frame(RBP, 16, bp=saved(-16)), Row(StepKind.BP, 0, -16, 16)),
    (frame(RBP, 16, bp=saved(32766)), Row(StepKind.BP, 0, 32766, 16)),
    (frame(-1, 0, b"\x76\x78\x06", bp=AT_BP), Row(StepKind.REALIGNED, 0, BP_AT_BP, -8)),
    (frame(-1, 0, b"\x76\x80\x7f\x06", bp=AT_BP), Row(StepKind.REALIGNED, 0, BP_AT_BP, -128)),
    (frame(-1, 0, PLT), Row(StepKind.PLT, 11, 0, 8)),
    (frame(5, 1 << 40, ra=(rules.UNDEFINED, 0, b"")), Row(StepKind.END, 0, 0, 0)),
    (SIGNAL_FRAME, Row(StepKind.SIGNAL, 0, 120, 160)),
    (FRAME_POINTER, Row(StepKind.FRAME_POINTER, 0, -16, 16)),
]


@pytest.mark.parametrize(("given", "row"), ENCODABLE)
def test_encodable(given: RuleSet, row: Row) -> None:
    assert decode(encode(given)) == row
    assert pack(row.kind, row.cfa_offset, row.bp_slot, row.detail) == encode(given)
    assert 0 < encode(given) < 1 << 64
    assert row.reason is None


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
    (frame(RSP, 1 << 100), Reason.CFA_OFFSET),
    (frame(RSP, 8, ra=None), Reason.RETURN_ADDRESS),
    (frame(RSP, 8, ra=saved(168)), Reason.RETURN_ADDRESS),
    (frame(RSP, 8, ra=(rules.REGISTER, 2, b"")), Reason.RETURN_ADDRESS),
    (frame(RSP, 8, bp=(rules.REGISTER, 2, b"")), Reason.SAVED_BP),
    (frame(RSP, 8, bp=(rules.UNDEFINED, 0, b"")), Reason.SAVED_BP),
    (frame(RSP, 8, bp=saved(0)), Reason.SAVED_BP),
    (frame(RSP, 8, bp=saved(1)), Reason.SAVED_BP),
    (frame(RSP, 8, bp=saved(1 << 15)), Reason.SAVED_BP),
    (frame(RSP, 8, bp=(rules.EXPRESSION, 0, b"\x76\x08")), Reason.SAVED_BP),
    (frame(RSP, 8, sp=saved(-24)), Reason.CALLER_SP),
    (frame(RSP, 8, signal=True), Reason.SIGNAL_FRAME),
    (frame(-1, 0, b"\x77\xa8\x01\x06", signal=True, ra=RETURN), Reason.SIGNAL_FRAME),
]


@pytest.mark.parametrize(("given", "reason"), UNENCODABLE)
def test_unencodable(given: RuleSet, reason: Reason) -> None:
    row = decode(encode(given))
    assert row == Row(StepKind.UNENCODABLE, reason, 0, 0)
    assert row.reason is reason


def test_plt_is_settled_by_address() -> None:
    """Before the push of its second instruction the frame is one word smaller."""
    row = encode(frame(-1, 0, PLT))
    for low in range(16):
        settled = decode(rows.settle_plt(row, 0x1230 + low))
        assert settled == Row(StepKind.SP, 0, 0, 16 if low >= 11 else 8)
    assert rows.settle_plt(rows.END_ROW, 15) == rows.END_ROW


@pytest.fixture(scope="module")
def c_side(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Values of the header as the C compiler sees them, and rows taken apart by it."""
    wanted = [prefix + member.name for prefix, enum in ENUMS for member in enum]
    wanted += ["ROW_BP_UNCHANGED", "ROW_BP_AT_BP", "ROW_SIGNAL_IP"]
    for given, _ in [*ENCODABLE, *UNENCODABLE]:
        wanted += [f"ROW_{field}({encode(given)}ULL)" for field in FIELDS]
    lines = "".join(f'printf("\\"{w}\\": %lld,", (long long)({w}));\n' for w in wanted)
    source = (
        "#include <stdio.h>\n#include <linux/types.h>\n"
        f'#include "row.h"\nint main(void) {{ printf("{{"); {lines} printf("\\"\\": 0}}"); }}\n'
    )
    out = tmp_path_factory.mktemp("row") / "row"
    subprocess.run(
        ["cc", "-Wall", "-Werror", "-x", "c", "-", "-I", probes.directory(), "-o", out],
        input=source, text=True, check=True, timeout=60,
    )  # fmt: skip
    printed = subprocess.run([out], capture_output=True, check=True, timeout=60).stdout
    result: dict[str, int] = json.loads(printed)
    return result


FIELDS = ("KIND", "DETAIL", "BP_SLOT", "CFA_OFFSET")


def test_header_values(c_side: dict[str, int]) -> None:
    for prefix, enum in ENUMS:
        for member in enum:
            assert c_side[prefix + member.name] == member.value
    assert c_side["ROW_BP_UNCHANGED"] == BP_UNCHANGED
    assert c_side["ROW_BP_AT_BP"] == BP_AT_BP
    assert c_side["ROW_SIGNAL_IP"] == rules.SIGNAL_IP
    in_header = re.findall(r"^\t(ROW_\w+) = \d+", HEADER, re.MULTILINE)
    assert sorted(in_header) == sorted(p + member.name for p, enum in ENUMS for member in enum)


def test_header_takes_rows_apart_alike(c_side: dict[str, int]) -> None:
    for given, _ in [*ENCODABLE, *UNENCODABLE]:
        row = encode(given)
        assert [c_side[f"ROW_{field}({row}ULL)"] for field in FIELDS] == list(decode(row))
