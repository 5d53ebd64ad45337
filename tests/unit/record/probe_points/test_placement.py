"""Where probes are put, in hand-made functions and in those of real libraries."""

import pytest

from tests.unit.files.elf.test_elf import libc
from tests.unit.references import module_of
from tracelloc.files.machinecode.probeoffsets import find_probe_offset, is_emulated
from tracelloc.record.abi import FunctionCode
from tracelloc.record.mallocs.discovery import discover, functions_of
from tracelloc.record.mallocs.families import FunctionKind
from tracelloc.record.probe_points.placement import plan_probes

RET = "c3"


# Where in a function of one argument.
CHEAP = {
    "55": 0,  # push %rbp
    "41 54": 0,  # push %r12
    "90": 0,  # nop
    "eb 00": 0, "e9 00 00 00 00": 0, "e8 00 00 00 00": 0, "0f 84 00 00 00 00": 0,
    "f3 0f 1e fa 55": 4,  # behind endbr64
    "f3 0f 1e fa 0f 1f 44 00 00 55": 9,  # never on a nop of five bytes
    "0f 1f 44 00 00 55": 5,
    "66 90 55": 2,  # longer nops are passed over: old kernels single-step them
    "48 85 ff 74 00": 3,  # test %rdi,%rdi; je: glibc's free
    "48 8b 05 00 00 00 00 55": 7,  # mov global,%rax; push: glibc's memalign
    "48 89 fa 55": 3,  # mov %rdi,%rdx: reads an argument, which is no harm
    "48 89 7c 24 f8 55": 5,  # stores below the stack pointer
    # test; je; … ; jmp behind the je: a loop of the function's own.
    "48 85 ff 74 05 48 89 c0 eb fb": 3,
    # To the entry: a call of itself.
    "48 85 ff 74 05 48 89 c0 eb f6": 3, "48 85 ff 74 05 48 89 c0 0f 85 f2 ff ff ff": 3,
    # On the first instruction a loop back to it is one call each, as at any entry.
    "55 eb fd": 0,
}  # fmt: skip
SINGLE_STEPPED = {
    # Never on a nop that harms, not even for want of better: the next instruction does no harm.
    "0f 1f 44 00 00 48 89 f8": 5, "0f 1f 44 00 00 0f 1f 44 00 00 48 89 f8": 10,
    "66 2e 0f 1f 84 00 00 00 00 00 48 89 f8": 10,
    "66 0f 1f 44 00 00 0f 1f 80 00 00 00 00 48 89 f8": 13,
    "48 83 ec 08 55": 0,  # sub $8,%rsp: the return address is no longer on top
    "5d 55": 0,  # pop
    "c9 55": 0,  # leave
    "48 ff c7 55": 0,  # inc %rdi
    "89 f7 55": 0,  # mov %esi,%edi: half of the register
    "40 b7 01 55": 0,  # mov $1,%dil: a byte of it
    "0f b7 ff 55": 0,  # movzwl %di,%edi
    "48 97 55": 0,  # xchg %rax,%rdi
    "f3 48 ab 55": 0,  # rep stos
    "ff e0 55": 0,  # jmp *%rax
    "ff d0 55": 0,  # call *%rax
    "f2 e9 00 00 00 00": 0,  # bnd jmp: not relied on
    "66 e9 00 00": 0,  # a branch with a prefix is single-stepped
    "e3 00 55": 0,  # jrcxz
    "e2 00 55": 0,  # loop
    "c3 55": 0, "cc 55": 0,
    "48 89 c0": 0,  # nothing cheap at all
    "": 0,
    # test; je; … ; jmp back to the je: it would be met twice in one call.
    "48 85 ff 74 05 48 89 c0 eb f9": 0,
    "48 85 ff 74 05 48 89 c0 eb f7": 0,  # the same into what lies before it
}  # fmt: skip


@pytest.mark.parametrize("code", [*CHEAP, *SINGLE_STEPPED])
def test_offsets(code: str) -> None:
    found = find_probe_offset(bytes.fromhex(code + RET), ["rdi"])
    stepped = code in SINGLE_STEPPED
    assert found.offset == (SINGLE_STEPPED if stepped else CHEAP)[code]
    assert found.is_single_stepped == stepped


def test_instructions_and_arguments_that_count() -> None:
    code = bytes.fromhex("31 f6 ba 01 00 00 00 55 c3")  # xor %esi,%esi; mov $1,%edx; push
    assert find_probe_offset(code, ["rdi"]).offset == 7
    assert find_probe_offset(code, ["rdi", "rsi"]).is_single_stepped
    assert find_probe_offset(code, ["rdi", "rdx"]).is_single_stepped
    assert find_probe_offset(bytes.fromhex("4885ff7400 06"), ["rdi"]).is_single_stepped
    assert find_probe_offset(bytes(70_000), ["rdi"]).is_single_stepped


def test_emulated() -> None:
    for code in ("", "0f", "41", "4889e5", "0f1f440000"):
        assert not is_emulated(bytes.fromhex(code))
    for opcode in (*range(0x50, 0x58), *range(0x70, 0x80), 0xE8, 0xE9, 0xEB, 0x90):
        assert is_emulated(bytes([opcode, 0]))


def test_glibc() -> None:
    module = module_of(libc())
    found = discover([module])
    points = plan_probes(found).points
    assert not any(point.is_exit for point in points)
    for point in points:
        code = module.elf.read(point.offset, 16)
        assert is_emulated(code) != point.is_single_stepped
        assert code[:5] != bytes.fromhex("0f1f440000")
    # Of all functions only reallocarray multiplies before anything else.
    assert {p.label.split()[0] for p in points if p.is_single_stepped} <= {"reallocarray"}
    entries = {p.offset for p in points}
    returns = {p.offset for p in points if p.returns}
    frees = [f for f in functions_of(found) if f.signature.kind is FunctionKind.FREE]
    assert returns < entries
    drains = [p for p in points if p.cookie == FunctionCode.CACHE_DRAIN]
    assert len(drains) == 1
    assert len(entries - returns) == len(frees) + len(drains)
