"""ELF files of 64-bit Arm: linkage tables, parts of functions, USDT arguments, symbols."""

import re
from pathlib import Path

import pytest

from tests.commands import run
from tests.distributions import file_of
from tests.unit.armfiles import assemble, check_figures, library
from tests.unit.files.elf.test_usdt import at, held
from tests.unit.references import open_cfi, open_elf
from tracelloc.files.cfi.module import function_parts
from tracelloc.files.elf.plt import plt_functions
from tracelloc.files.elf.usdt import usdt_probes
from tracelloc.files.machinecode.threadcache import makes_filters
from tracelloc.record.worker.codefilereader import CodeFileReader

STUB = re.compile(r"^([0-9a-f]{16}) <(\w+)(?:@@?\w[\w.]*)?@plt>:$", re.MULTILINE)


def stubs_of_objdump(path: Path) -> dict[int, str]:
    text = run("aarch64-linux-gnu-objdump", "-d", "-j", ".plt", path)
    return {int(address, 16): f"{name}@plt" for address, name in STUB.findall(text)}


@pytest.mark.parametrize(
    ("name", "count"), [("libc.so.6", 17), ("libm.so.6", 11), ("libstdc++.so.6", 1070)]
)
def test_stubs_equal_objdump(name: str, count: int) -> None:
    path = library(name)
    found = plt_functions(open_elf(path))
    # objdump also has "stubs" for thread-local variables, which none leads to.
    theirs = {at: name for at, name in stubs_of_objdump(path).items() if "once_call" not in name}
    assert {address: name for address, _, name in found} == theirs
    assert {size for _, size, _ in found} == {16}
    check_figures(len(found), count)


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "pattern"),
    [("libpython3.13", "libpython3.13.so.1.0"), ("libjemalloc2", "libjemalloc.so.2")],
)
def test_stubs_with_branch_protection(package: str, pattern: str) -> None:
    path = file_of("trixie", package, pattern, "arm64")
    found = {address: name for address, _, name in plt_functions(open_elf(path))}
    assert found == stubs_of_objdump(path)
    assert len(found) > 50


SPLIT = """
.globl f, g
.type f, %function
.type g, %function
f:  .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    cbz x0, .Lcold
    b.eq .Lg
    tbnz x0, #1, .Lnone
    nop
    b .Lcold2
    .cfi_endproc
    .size f, . - f
g:
.Lg:.cfi_startproc
    ret
    .cfi_endproc
    .size g, . - g
.Lnone: ret
    .rept 3
    nop
    .endr
.macro part label
\\label:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    nop
    bl g
    .cfi_endproc
.endm
    part .Lcold
    part .Lcold2
"""


def test_parts_of_functions(tmp_path: Path) -> None:
    """By any branch out of the function; another function and bare code are no parts of it."""
    path = assemble(tmp_path, SPLIT)
    whole, *parts = function_parts(open_elf(path), open_cfi(path), "f")
    assert (len(whole), [part.start - whole.start for part in parts]) == (24, [44, 52])
    assert [len(part) for part in parts] == [8, 8]


NOTE = """
    .globl _start
_start: nop
    .section .note.stapsdt, "", %note
    .balign 4
    .4byte 8, 2f - 1f, 3
    .asciz "stapsdt"
1:  .8byte 0x400, 0, 0
    .asciz "otel_memory"
    .asciz "alloc"
    .asciz "{arguments}"
2:  .balign 4
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8@x0 -8@x1", (held(0), held(1, -8))), ("8@sp", (held(31),)), ("-4@w1", (held(1, -4),)),
        ("8@[sp]", (at(31),)), ("8@[sp, 16] 8@x30", (at(31, 16), held(30))),
        ("-4@[x29, -24]  8@[x19,8]", (at(29, -24, size=-4), at(19, 8))), ("", ()),
        ("8@[sp, 0x10]", (at(31, 16),)), ("8@[sp, #32]", (at(31, 32),)),
        ("-8@-7", (at(constant=-7, memory=False, size=-8),)), ("8@w1", (held(1, 4),)),
        ("8@[x0, x1]", (at(0, index=1),)), ("8@[x0, x1, lsl 3]", (at(0, index=1, shift=3),)),
        ("8@x31", (None,)), ("8@%rdi", (None,)), ("8@xzr", (None,)),
        ("8@[sp, 16", (None, at(constant=16, memory=False))),
        ("8@x0 [", (held(0), None)), ("8@[sp 16]", (None,)), ("8@d0 4@w2", (None, held(2, 4))),
    ],
)  # fmt: skip
def test_usdt_arguments(text: str, expected: tuple, tmp_path: Path) -> None:
    (found,) = usdt_probes(open_elf(assemble(tmp_path, NOTE.format(arguments=text))), "otel_memory")
    assert (found.address, found.arguments) == (0x400, expected)


MARKED = """
.globl f
.type f, %function
f:  ldr x0, 1f
    ret
1:  .8byte 0x1234
    nop
"""


def test_mapping_symbols_are_no_functions(tmp_path: Path) -> None:
    """$x and $d tell code from data in files that are not stripped."""
    path = assemble(tmp_path, MARKED)
    listed = run("aarch64-linux-gnu-readelf", "-sW", path)
    assert listed.count(" $x") == 2
    assert listed.count(" $d") >= 1
    elf = open_elf(path)
    ((start, _),) = elf.find_functions(["f"])["f"].items()
    found = [elf.symbols.find(start + at) for at in (0, 4, 8, 16)]
    assert [symbol and symbol.name for symbol in found] == ["f"] * 4
    assert elf.find_functions(["$x", "$d"]) == {}


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        ("mov x8, #167\nmov x0, #22\nsvc #0", True), ("mov w3, #277\nsvc #0", True),
        ("mov x8, #168\nsvc #0", False), ("mov x8, #277", False),
        ("mov x8, #277\n.rept 20\nnop\n.endr\nsvc #0", False),
    ],
)  # fmt: skip
def test_filters_are_noticed(text: str, makes: bool, tmp_path: Path) -> None:
    assert makes_filters(open_elf(assemble(tmp_path, f"f:\n{text}\n"))) == makes


def test_libraries_that_make_filters_and_files_of_others() -> None:
    names = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libhwasan.so.0")
    found = {name: makes_filters(open_elf(library(name))) for name in names}
    # Later ones leave it to the C library.
    check_figures([found.pop("libhwasan.so.0")], [True])
    assert found == {"libc.so.6": True, "libm.so.6": False, "libstdc++.so.6": False}
    # An emulator may map them: this processor executes none of their code.
    assert CodeFileReader(open_elf(library("libc.so.6"))).cfi is None
