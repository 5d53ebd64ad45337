"""Rows of 64-bit Arm: what fits into 64 bits, and that steps by them are those of the rules."""

import random
from collections import Counter

import numpy as np
import pytest

from tests.unit.armfiles import check_figures, library
from tests.unit.files.cfi.test_arm_cfi import FP, LR, PC, SIGNATURE, SP
from tests.unit.references import open_cfi
from tests.unit.unwindrows import ArmRow, Kind, ReturnPlace, Row, decode, decode_arm
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.files.cfi import core
from tracelloc.files.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.files.cfi.module import Cfi, built_in_rules
from tracelloc.files.cfi.walk import Reason

Rule = tuple[int, int, bytes]


def saved(offset: int) -> Rule:
    return core.OFFSET, offset, b""


def frame(
    register: int, offset: int, expression: bytes = b"", *, fp: Rule | None = None,
    lr: Rule | None = None, sp: Rule | None = None, signal: bool = False, column: int = LR,
) -> RuleSet:  # fmt: skip
    given = {FP: fp, LR: lr, SP: sp}
    rules = {number: rule for number, rule in given.items() if rule is not None}
    return RuleSet(
        register, offset, expression, rules, column, is_signal=signal, architecture=AARCH64
    )


SAME = (core.SAME, 0, b"")
GONE = (core.UNDEFINED, 0, b"")
BUILT_IN = built_in_rules(AARCH64)
ENCODABLE = [
    (frame(SP, 0), ArmRow(Kind.SP, 1, 0, 0)),
    (frame(SP, 0, fp=SAME, lr=SAME), ArmRow(Kind.SP, 1, 0, 0)),
    (frame(SP, 48, fp=saved(-48), lr=saved(-40)), ArmRow(Kind.SP, 0, -48, 48)),
    (
        frame(SP, 1 << 20, fp=saved(-(1 << 18)), lr=saved(8 - (1 << 18))),
        ArmRow(Kind.SP, 0, -(1 << 18), 1 << 20),
    ),
    (frame(FP, 96, fp=saved(-96), lr=saved(-88)), ArmRow(Kind.BP, 0, -96, 96)),
    (frame(SP, 64, lr=saved(-64)), ArmRow(Kind.SP, 2, -64, 64)),
    (frame(SP, 16, fp=saved(-16)), ArmRow(Kind.SP, 1, -16, 16)),
    (frame(7, 0, lr=GONE), ArmRow(Kind.END, 0, 0, 0)),
    (BUILT_IN.signal_frame, ArmRow(Kind.SIGNAL, 0, 8 * 544, 560)),
    (BUILT_IN.frame_pointer, ArmRow(Kind.FRAME_POINTER, 0, 8 * -16, 16)),
]
UNENCODABLE = [
    (frame(19, 0), Reason.CFA_REGISTER),
    (frame(-1, 0, b"\x8d\x10\x06"), Reason.CFA_EXPRESSION),
    (frame(SP, 1 << 31), Reason.CFA_OFFSET),
    (frame(SP, 512, fp=saved(-64), lr=saved(-72)), Reason.RETURN_ADDRESS),
    (frame(SP, 64, fp=saved(-64), lr=saved(8)), Reason.RETURN_ADDRESS),
    (frame(SP, 64, lr=(core.REGISTER, 9, b"")), Reason.RETURN_ADDRESS),
    (frame(SP, 64, lr=saved(-8 - (1 << 18))), Reason.RETURN_ADDRESS),
    (frame(SP, 0, column=15), Reason.RETURN_ADDRESS),
    (frame(SP, 64, fp=saved(-12)), Reason.SAVED_BP),
    (frame(SP, 64, fp=saved(0)), Reason.SAVED_BP),
    (frame(SP, 64, fp=(core.REGISTER, 9, b"")), Reason.SAVED_BP),
    (frame(SP, 64, fp=saved(-8 - (1 << 18)), lr=saved(-(1 << 18))), Reason.SAVED_BP),
    (frame(SP, 64, sp=saved(-8)), Reason.CALLER_SP),
    (frame(SP, 64, signal=True), Reason.SIGNAL_FRAME),
]


def test_rows_and_reasons() -> None:
    for given, row in ENCODABLE:
        assert decode_arm(given.row(0)) == row, given
    for given, reason in UNENCODABLE:
        assert decode(given.row(0)) == Row(Kind.UNENCODABLE, reason, 0, 0), given


# -- a step by a row, as probes/row.h describes it

BASE = 0x7FFF_0000_0000
SIZE = 1 << 16
MASK = (1 << 64) - 1
ADDRESS = AARCH64.return_address_mask


def step(row: int, sp: int, fp: int, lr: int, stack: bytes) -> tuple[int, int, int]:
    """The caller's pc, sp and x29."""

    def word(address: int) -> int:
        at = address - BASE
        assert 0 <= at <= SIZE - 8
        return int.from_bytes(stack[at : at + 8], "little")

    kind, place, slot, offset = decode_arm(row)
    cfa = (sp if kind is Kind.SP else fp) + offset & MASK
    if place == ReturnPlace.REGISTER:
        address = lr
    elif place == ReturnPlace.ITS_SLOT:
        address = word(cfa + slot)
    else:
        address = word(cfa + slot + 8)
    caller_fp = fp if slot == 0 or place == ReturnPlace.ITS_SLOT else word(cfa + slot)
    return address & ADDRESS, cfa, caller_fp


def read_as_address(register: int) -> RuleSet:
    """Rules whose return address is a register's value."""
    rule = {LR: (core.VAL_OFFSET, 0, b"")}
    return RuleSet(register, 0, b"", rule, is_signal=True, architecture=AARCH64)


def step_by_rules(rules: RuleSet, sp: int, fp: int, lr: int, stack: StackCopy) -> tuple[int, ...]:
    """Steps by the full rules, for comparison."""
    found = []
    for register in (SP, FP):
        given = iter([rules, read_as_address(register)])
        registers = {PC: 1, SP: sp, FP: fp, LR: lr}
        walk = unwind(registers, stack, lambda _: next(given), limit=3, architecture=AARCH64)  # noqa: B023
        found.append(walk.frames[1:])
    (pc, found_sp), (_, found_fp) = found
    return pc, found_sp, found_fp


SP_BESIDE, FP_BESIDE, SP_REGISTER, SP_ITS_SLOT = (
    (Kind.SP, ReturnPlace.BESIDE_FP), (Kind.BP, ReturnPlace.BESIDE_FP),
    (Kind.SP, ReturnPlace.REGISTER), (Kind.SP, ReturnPlace.ITS_SLOT),
)  # fmt: skip
# How many instructions of each kind are compared.
STEPPED = {
    "libc.so.6": {SP_BESIDE: 12142, FP_BESIDE: 2846, SP_REGISTER: 1737, SP_ITS_SLOT: 266},
    "libm.so.6": {SP_BESIDE: 3404, SP_REGISTER: 914},
    "libstdc++.so.6": {SP_BESIDE: 13098, FP_BESIDE: 628, SP_REGISTER: 1298},
}


@pytest.mark.parametrize("name", STEPPED)
def test_steps_equal_those_of_the_rules(name: str) -> None:
    """At every 16th instruction that a function has information about, signed or not."""
    cfi = open_cfi(library(name))
    rng = random.Random(5)
    stack = bytearray(rng.randbytes(SIZE))
    # User-space addresses: 47 bits on kernels with pages of 16 KiB.
    stack[5::8] = bytes(byte & 0x7F for byte in stack[5::8])
    stack[6::8] = bytes(len(stack[6::8]))
    stack[7::8] = bytes(len(stack[7::8]))
    copy = StackCopy(BASE, bytes(stack))
    kinds: Counter[tuple[Kind, int]] = Counter()
    for address in addresses(cfi)[::16].tolist():
        row = cfi.row(address)
        if row & 0xF in (Kind.UNENCODABLE, Kind.END):
            continue
        sp = BASE + 8 * rng.randrange(1024, 2048)
        fp = BASE + 8 * rng.randrange(2048, 4096)
        lr = rng.randrange(1, 1 << 48)
        assert step(row, sp, fp, lr | SIGNATURE, stack) == step_by_rules(
            cfi.rules(address), sp, fp, lr | SIGNATURE, copy
        ), hex(address)
        kinds[decode_arm(row)[:2]] += 1
    check_figures(kinds, STEPPED[name])


def addresses(cfi: Cfi) -> np.ndarray:
    """All instructions that have information."""
    table = cfi._table(0)
    pieces = []
    for offset in table[1].offsets.tolist():
        start, size = table[0].fde(offset)
        pieces.append(np.arange(start, start + size, 4, dtype=np.uint64))
    return np.concatenate(pieces)
