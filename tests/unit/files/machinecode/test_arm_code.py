"""64-bit Arm code: instructions against objdump and capstone, probe offsets, paths to exits."""

import re
from functools import cache
from pathlib import Path

import capstone
import pytest

from tests.commands import run
from tests.unit.armfiles import assemble, check_figures, library, words
from tests.unit.references import open_cfi, open_elf
from tracelloc.architecture.aarch64.instructions import direct_target, written_registers
from tracelloc.files.machinecode import armcode
from tracelloc.files.machinecode.codepaths import CodeReader
from tracelloc.files.machinecode.instruction import CodeFlow, ProbeOffset
from tracelloc.files.machinecode.threadcache import thread_cache_drain

LINE = re.compile(r"^ +([0-9a-f]+):\t([0-9a-f]{8}) \t(\S+)(?:\t(\S.*))?$", re.MULTILINE)
FILES = ("libc.so.6", "libm.so.6", "libstdc++.so.6")


@cache
def listing(path: Path) -> list[tuple[int, int, str, str]]:
    """Address, word, name and operands of all instructions, as objdump sees them."""
    text = run("aarch64-linux-gnu-objdump", "-d", path)
    return [(int(m[1], 16), int(m[2], 16), m[3], m[4] or "") for m in LINE.finditer(text)]


SIMULATED = re.compile(r"b|bl|b\.[a-z]{2}|cbn?z|tbn?z|br|blr|ret|adrp?")
REFUSED = re.compile(
    r"brk|hlt|svc|msr|eret|ld?a?xr[bh]?|st?l?xr[bh]?|[ls][dt][la]?xp|ldaxr[bh]?|ldxr[bh]?|ldaxp|"
    r"casp\w*|retaa|retab|braa|yield|wfe|wfi|sev|autiasp|udf|xaflag|sevl|chkfeat|smst\w+"
)


def test_classes_equal_names() -> None:
    """Simulated and refused instructions equal those of objdump, in all code of three libraries."""
    simulated = refused = 0
    for name in FILES:
        for at, word, mnemonic, operands in listing(library(name)):
            assert armcode.is_simulated(word) == bool(SIMULATED.fullmatch(mnemonic)), hex(at)
            simulated += armcode.is_simulated(word)
            literal = mnemonic in ("ldr", "ldrsw", "prfm") and re.search(r", [0-9a-f]+ <", operands)
            unusable = bool(REFUSED.fullmatch(mnemonic) or literal or mnemonic == ".inst")
            assert armcode.can_probe(word) != unusable, (hex(at), mnemonic, operands)
            refused += unusable
    check_figures((simulated, refused), (154535, 760))


def test_targets_equal_objdump() -> None:
    compared = 0
    for at, word, mnemonic, operands in listing(library("libc.so.6")):
        target = direct_target(word, at)
        is_direct = bool(re.fullmatch(r"b|bl|b\.[a-z]{2}|cbn?z|tbn?z", mnemonic))
        assert (target is not None) == is_direct
        if target is not None:
            assert target == int(operands.split(" <")[0].split(", ")[-1], 16), hex(at)
            compared += 1
    check_figures(compared, 58004)


@cache
def numbers() -> dict[int, int]:
    """Bits of the general registers by capstone's numbers."""
    arm = capstone.arm64_const
    found = {getattr(arm, f"ARM64_REG_{k}{n}"): n for n in range(31) for k in "XW"
             if hasattr(arm, f"ARM64_REG_{k}{n}")}  # fmt: skip
    return found | {arm.ARM64_REG_SP: 31, arm.ARM64_REG_WSP: 31}


ALIASES = ("cmp", "cmn", "tst")  # capstone 5 says that these write their first operand


def test_writes_include_capstones() -> None:
    """No register that capstone says is written is missing: in a third of all instructions."""
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    decoder.detail = True
    found = {word: name for file in FILES for _, word, name, _ in listing(library(file))}
    some = [word for word in sorted(found)[::3] if found[word] not in ALIASES]
    compared = 0
    for word in some:
        for each in decoder.disasm(words(word), 0):
            theirs = sum({1 << numbers()[n] for n in each.regs_access()[1] if n in numbers()})
            assert theirs & ~written_registers(word) == 0, f"{each.mnemonic} {each.op_str}"
            compared += 1
    assert compared > 41_000


# -- probe offsets

ONE, TWO, THREE = ("x0",), ("x0", "x1"), ("x0", "x1", "x2")
AT_0, AT_4, AT_8, STEPPED = (
    ProbeOffset(0, False), ProbeOffset(4, False), ProbeOffset(8, False), ProbeOffset(0, True),
)  # fmt: skip
# free: `cbz`; mmap: `tst`, `b.ne`; munmap: its branch is behind the system call, whose result is in
# x0. The others begin with `stp x29, x30, [sp, #-N]!` or take from sp, and reallocarray with `umulh
# x3, x1, x2`, then `mul x1`.
GLIBC_236 = {
    "free": (ONE, AT_0), "cfree": (ONE, AT_0), "malloc_usable_size": (ONE, AT_0),
    "mmap": (TWO, AT_4), "malloc": (ONE, STEPPED), "calloc": (TWO, STEPPED),
    "realloc": (TWO, STEPPED), "memalign": (TWO, STEPPED), "aligned_alloc": (TWO, STEPPED),
    "posix_memalign": (THREE, STEPPED), "valloc": (ONE, STEPPED), "pvalloc": (ONE, STEPPED),
    "reallocarray": (THREE, STEPPED), "mremap": (("x0", "x1", "x2", "x3"), STEPPED),
    "sbrk": (ONE, STEPPED), "munmap": (TWO, STEPPED),
}  # fmt: skip


def offset_in(path: Path, name: str, registers: tuple[str, ...]) -> ProbeOffset | None:
    elf = open_elf(path)
    ((start, size),) = elf.find_functions([name])[name].items()
    return armcode.find_probe_offset(elf.read(elf.offset_of(start), size), registers)


@pytest.mark.parametrize("name", GLIBC_236)
def test_offsets_in_glibc(name: str) -> None:
    registers, expected = GLIBC_236[name]
    check_figures(offset_in(library("libc.so.6"), name, registers), expected)


LDXR, STXR, CBNZ_BACK = 0xC85F7C01, 0xC8027C03, 0x35FFFFC2
PACIASP, BTI, ADRP, MOV_X9 = 0xD503233F, 0xD503245F, 0x90000010, 0xAA0003E9
LITERAL, VECTOR_LITERAL, YIELD, SVC, RETAA = (
    0x58000040, 0x5C000040, 0xD503203F, 0xD4000001, 0xD65F0BFF,
)  # fmt: skip
RET, B_NEXT, B_BACK, CBZ_FAR = 0xD65F03C0, 0x14000001, 0x17FFFFFF, 0xB4000400


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ((RET,), AT_0), ((BTI, ADRP, RET), AT_4), ((BTI, MOV_X9, CBZ_FAR), AT_8),
        ((BTI, PACIASP, ADRP), STEPPED), ((PACIASP, CBZ_FAR), STEPPED),
        ((BTI, LITERAL, ADRP), STEPPED),  # it loads x0
        ((BTI, LDXR, STXR, CBNZ_BACK), STEPPED), ((LDXR, STXR, CBNZ_BACK), None),
        ((MOV_X9, VECTOR_LITERAL, ADRP), ProbeOffset(8, False)),
        ((VECTOR_LITERAL, MOV_X9, SVC), ProbeOffset(4, True)),
        ((VECTOR_LITERAL, PACIASP), ProbeOffset(4, True)),
        ((YIELD, SVC), None), ((SVC, RET), None), ((RETAA,), None), ((BTI, RETAA), STEPPED),
        ((MOV_X9, B_NEXT, B_BACK), STEPPED),  # leads back to it
        ((), None), ((0,), None),
    ],
)  # fmt: skip
def test_offsets(code: tuple[int, ...], expected: ProbeOffset | None) -> None:
    assert armcode.find_probe_offset(words(*code), ONE) == expected


def test_offsets_at_entries_and_flows() -> None:
    assert armcode.at_entry(words(BTI, RET)) == STEPPED
    assert armcode.at_entry(words(RET)) == AT_0
    assert armcode.at_entry(words(VECTOR_LITERAL, RET)) is None
    assert armcode.at_entry(b"\x1f\x20") is None
    assert armcode.nop_at(words(0xD503201F)) == (4, False)
    assert armcode.nop_at(words(BTI)) == (0, False)
    # A function that is too long to look for branches.
    assert armcode.find_probe_offset(words(BTI, ADRP, *[RET] * 20_000), ONE) == STEPPED
    flows = {
        RET: CodeFlow.RETURN, RETAA: CodeFlow.RETURN, B_NEXT: CodeFlow.JUMP,
        0xD61F0060: CodeFlow.JUMP, 0xD71F0864: CodeFlow.JUMP, CBZ_FAR: CodeFlow.BRANCH,
        0x94000001: CodeFlow.CALL, 0xD63F0060: CodeFlow.CALL, 0xD73F0864: CodeFlow.CALL,
        0xD4207D00: CodeFlow.TRAP, 0: CodeFlow.TRAP, SVC: CodeFlow.NEXT, BTI: CodeFlow.NEXT,
    }  # fmt: skip
    assert {word: next(armcode.decode(words(word), 0)).flow for word in flows} == flows


# -- exits

PATHS = """
.globl plain, signed, switch, tail, noreturn, traps, other
.type plain, %function
.type other, %function
plain: cbz x0, 1f
    bl other
    ret
1:  tbnz x1, #3, 2f
    b 3f
2:  ret x15
3:  ret
signed: paciasp
    cbz x0, 1f
    retaa
1:  ret
switch: br x3
tail: b other
noreturn: bl abort
traps: cbz x0, 1f
    brk #1000
1:  udf #0
other: ret
"""


def test_exits(tmp_path: Path) -> None:
    path = assemble(tmp_path, PATHS)
    elf = open_elf(path)
    rows = (line.split() for line in run("aarch64-linux-gnu-nm", path).splitlines())
    labels = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    reader = CodeReader(elf)
    plain = reader.exits(labels["plain"])
    assert (plain.trouble, sorted(at - labels["plain"] for at in plain.rets)) == ("", [8, 20, 24])
    assert reader.exits(labels["signed"]).trouble == (
        "it returns by an instruction that can't have a probe"
    )
    assert reader.exits(labels["switch"]).trouble == "it continues by br x3"
    assert reader.exits(labels["tail"]).rets == {labels["other"]}
    assert reader.exits(labels["noreturn"]).trouble == "it has no ret instruction"
    assert reader.exits(labels["traps"]).trouble == "it has no ret instruction"
    assert reader.always_calls(labels["tail"], names={"other"})


def drain_in(path: Path) -> str | None:
    """The function before which the drain of thread caches lies, or whether there is none."""
    elf, cfi = open_elf(path), open_cfi(path)
    frees = set(elf.find_functions(["free"])["free"])

    def start_of(address: int) -> int | None:
        part = cfi.part_at(address)
        return None if part is None else part.start

    found = thread_cache_drain(elf, frees, start_of)
    return None if found is None else hex(found)


def test_drain_and_slots() -> None:
    check_figures(drain_in(library("libc.so.6")), "0x8f730")
    # Before any call, below the stack pointer at entry, as the functions' first pushes say.
    path = library("libc.so.6")
    elf = open_elf(path)
    functions = {name: min(places) for name, places in elf.find_functions(SLOTS).items()}
    reader, found = CodeReader(elf), {}
    for name, address in functions.items():
        others = frozenset(functions.values()) - {address}
        found[name] = reader.return_slot(address, others)
        pushes = [o for at, *_, o in listing(path) if address <= at < address + 64]
        pushed = next((m for operands in pushes if (m := PUSHED.fullmatch(operands))), None)
        if found[name]:
            assert pushed is None or found[name] == int(pushed[1]) // 8 - 1, name
    check_figures(found, SLOTS)


PUSHED = re.compile(r"x29, x30, \[sp, #-(\d+)\]!")
# reallocarray jumps to realloc; pvalloc has a frame, and jumps to a function with another.
SLOTS = {
    "malloc": 7, "calloc": 9, "realloc": 13, "reallocarray": 0, "free": 7, "memalign": 5,
    "posix_memalign": 5, "sbrk": 5, "mremap": 9, "mmap": 0, "pvalloc": 0,
}  # fmt: skip
