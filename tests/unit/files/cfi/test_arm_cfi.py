"""Call-frame information of 64-bit Arm: against readelf, made files, and stacks made by hand."""

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.unit.armfiles import assemble, check_figures, library
from tests.unit.files.cfi.test_cfi_files import compared_with
from tests.unit.readelfrows import rows_of_readelf
from tests.unit.references import open_cfi, open_elf
from tests.unit.unwindrows import Kind, decode
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.files.cfi import core
from tracelloc.files.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.files.cfi.module import END_ROW, FALLBACK_ROW, Cfi, built_in_rules
from tracelloc.files.cfi.walk import End, Walk

FP, LR, SP, PC = 29, 30, 31, 32
# Numbers by readelf's names; it shows the return address's register as `ra`.
NAMES = {**{f"x{n}": n for n in range(30)}, "sp": SP, "ra": LR}
READELF = "aarch64-linux-gnu-readelf"


# How many rows there are, and how many whose return address is not in x30 or its slot: those of
# `rawmemchr`, which has it in x15.
ROWS = {
    "libc.so.6": (19175, 2), "libm.so.6": (3722, 0), "libstdc++.so.6": (20777, 0),
    "ld-linux-aarch64.so.1": (1479, 2),
}  # fmt: skip


def compare_with_readelf(cfi: Cfi, path: Path) -> tuple[int, int]:
    """Returns how many rows there are, and how many have another return register than x30."""
    rows = rows_of_readelf(path, NAMES, READELF, must_succeed=True)
    found = list(compared_with(rows, cfi, NAMES))
    assert not any(rules.is_signal for rules in found)
    return len(found), sum(rules.return_register != LR for rules in found)


@pytest.mark.parametrize("name", ROWS)
def test_equals_readelf(name: str) -> None:
    """All rows of a file."""
    check_figures(compare_with_readelf(open_cfi(library(name)), library(name)), ROWS[name])


SIGNED = """
f:  .cfi_startproc
    paciasp
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    .cfi_remember_state
    cbz x0, 1f
    ldp x29, x30, [sp], #32
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    autiasp
    .cfi_negate_ra_state
    ret
1:  .cfi_restore_state
    bl f
    .cfi_escape 0x2c
    nop
    .cfi_negate_ra_state
    nop
    .cfi_endproc
"""


def test_signed_return_addresses(tmp_path: Path) -> None:
    """negate_ra_state, alone and with_pc, remembered and restored; it takes no operand."""
    path = assemble(tmp_path, SIGNED)
    cfi, start = open_cfi(path), open_elf(path).section_header(".text").address
    saved = {FP: (core.OFFSET, -32, b""), LR: (core.OFFSET, -24, b"")}
    found = [cfi.rules(start + 4 * n) for n in range(9)]
    assert [rules.is_signed for rules in found] == [
        False, True, True, True, True, False, True, False, True,
    ]  # fmt: skip
    assert [rules.cfa_offset for rules in found] == [0, 0, 32, 32, 0, 0, 32, 32, 32]
    assert [rules.registers for rules in found] == [
        {}, {}, saved, saved, {}, {}, saved, saved, saved,
    ]  # fmt: skip
    # No row needs to know: user-space addresses have 48 bits.
    assert len({cfi.row(start + 4 * n) for n in (2, 6, 7, 8)}) == 1


# -- steps

BASE = 0x7FFFFFFF0000
SIGNATURE = 0x1234 << 48 | 1 << 55


def arm_rules(register: int, offset: int, signal: bool = False, **rules: int) -> RuleSet:
    """``fp`` and ``lr`` are saved at a distance from the CFA."""
    saved = {{"fp": FP, "lr": LR}[name]: (core.OFFSET, at, b"") for name, at in rules.items()}
    return RuleSet(register, offset, registers=saved, is_signal=signal, architecture=AARCH64)


LAST = RuleSet(SP, 0, registers={LR: (core.UNDEFINED, 0, b"")}, architecture=AARCH64)


def walk(lookup: dict[int, RuleSet], stack: bytes = bytes(64), **registers: int) -> Walk:
    names = {"pc": PC, "sp": SP, "fp": FP, "lr": LR}
    values = {PC: 0x100, SP: BASE} | {names[name]: value for name, value in registers.items()}
    return unwind(
        values, StackCopy(BASE, stack), lambda at: lookup.get(at, LAST), limit=8,
        architecture=AARCH64,
    )  # fmt: skip


def test_steps_and_frame_pointers() -> None:
    leaf, framed = arm_rules(SP, 0), arm_rules(SP, 32, fp=-32, lr=-24)
    stack = struct.pack("<8Q", BASE + 48, 0x300 | SIGNATURE, 0, 0, 0, 0, 0, 0x400)
    # A function that has saved nothing: once, and only where x30 is known.
    assert walk({0xFF: leaf}, lr=0x200) == Walk((0x100, 0x200), End.OUTERMOST, 0)
    assert walk({0xFF: leaf}, lr=0x200 | SIGNATURE) == Walk((0x100, 0x200), End.OUTERMOST, 0)
    assert walk({0xFF: leaf}) == Walk((0x100,), End.UNKNOWN_REGISTER, 0)
    assert walk({0xFF: leaf, 0x1FF: leaf}, lr=0x200) == Walk(
        (0x100, 0x200), End.UNKNOWN_REGISTER, 0
    )
    assert walk({0xFF: leaf}, lr=0) == Walk((0x100,), End.OUTERMOST, 0)
    # Saved beside x29, signed; then by that frame pointer.
    by_fp = arm_rules(FP, 16, fp=-16, lr=-8)
    expected = Walk((0x100, 0x200, 0x300, 0x400), End.OUTERMOST, 0)
    assert walk({0xFF: leaf, 0x1FF: framed, 0x2FF: by_fp}, stack, lr=0x200) == expected
    # A frame that saves x30 must be smaller than nothing to be no progress.
    assert walk({0xFF: arm_rules(SP, 0, lr=8)}, stack).end is End.NO_PROGRESS
    assert walk({0xFF: arm_rules(SP, -8, lr=16)}, stack).end is End.NO_PROGRESS
    assert walk({0xFF: arm_rules(SP, -8)}, lr=0x200).end is End.NO_PROGRESS
    # The register that calls leave it in is not preserved by a callee.
    assert walk({0xFF: framed, 0x2FF: leaf}, stack, lr=0x999).end is End.UNKNOWN_REGISTER
    fallback = built_in_rules(AARCH64).frame_pointer
    stack = struct.pack("<8Q", BASE + 32, 0x200 | SIGNATURE, 0, 0, 0, 0x300, 0, 0)
    rules = {0xFF: fallback, 0x1FF: fallback, 0x2FF: fallback}
    assert walk(rules, stack, fp=BASE) == Walk((0x100, 0x200, 0x300), End.OUTERMOST, 3)
    assert walk(rules, stack, fp=0) == Walk((0x100,), End.OUTERMOST, 1)
    assert fallback.row(0) == FALLBACK_ROW
    assert built_in_rules(AARCH64).outermost.row(0) == END_ROW


def test_callee_saved_registers() -> None:
    """x19 to x29 and no others, so far as a CFA needs them."""
    for number in range(31):
        rules = {0xFF: arm_rules(SP, 16, lr=-8), 0x1FF: arm_rules(number, 0, lr=-8)}
        stack = struct.pack("<8Q", 0, 0x200, 0, 0x300, 0, 0, 0, 0)
        found = unwind(
            {PC: 0x100, SP: BASE, number: BASE + 32}, StackCopy(BASE, stack),
            lambda at, rules=rules: rules.get(at, LAST), architecture=AARCH64,
        )  # fmt: skip
        kept = 19 <= number <= 29
        assert found.frames == ((0x100, 0x200, 0x300) if kept else (0x100, 0x200)), number
        assert found.end is (End.OUTERMOST if kept else End.UNKNOWN_REGISTER)


def test_signals(tmp_path: Path) -> None:
    """Through the kernel's frame into a function that has saved nothing, at the instruction."""
    frame = built_in_rules(AARCH64).signal_frame
    assert decode(frame.row(0))[::2] == (Kind.SIGNAL, 544)
    stack = bytearray(1024)
    for place, value in ((544, BASE + 7), (552, 0x300), (560, BASE + 800), (568, 0x200)):
        struct.pack_into("<Q", stack, place, value)
    leaf = arm_rules(SP, 0)
    walked = walk({0xFF: frame, 0x200: leaf}, bytes(stack))
    assert walked == Walk((0x100, 0x200, 0x300), End.OUTERMOST, 0)
    # On an alternate stack, the interrupted one may lie below.
    struct.pack_into("<Q", stack, 560, BASE - 800)
    assert walk({0xFF: frame, 0x200: leaf}, bytes(stack)).frames == (0x100, 0x200, 0x300)
    # Handlers return to code without information, recognized by its instructions.
    path = assemble(tmp_path, "f: nop\n mov x8, #139\n svc #0\n nop\n nop\n nop\n nop\n")
    elf, cfi = open_elf(path), open_cfi(path)
    text = elf.section_header(".text")
    kinds = [decode(cfi.row(text.address + at)).kind for at in range(-1, 9)]
    # The byte before a return address, or the address itself.
    assert [at for at, kind in enumerate(kinds, -1) if kind is Kind.SIGNAL] == [3, 4]


def test_call_sites_equal_objdump() -> None:
    """All calls that objdump sees in code that has information, and hardly more."""
    path = library("libstdc++.so.6")
    real = {
        int(line.split(":")[0], 16) + 3
        for line in run("aarch64-linux-gnu-objdump", "-d", path).splitlines()
        if "\tbl\t" in line or "\tblr\t" in line
    }
    cfi = open_cfi(path)
    found = cfi.call_sites()
    rows = cfi.rows(np.array(sorted(real), np.uint64)).tolist()
    covered = {at for at, row in zip(sorted(real), rows, strict=True) if row != FALLBACK_ROW}
    check_figures((len(real), len(covered), len(found)), (19867, 19866, 19866))
    assert covered == set(found.tolist())
