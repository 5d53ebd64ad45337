"""Call-frame information of real files, against readelf, and of damaged ones."""

import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import run
from tests.harness import LIBRARIES, Builder
from tests.unit.hostile import in_memory
from tests.unit.readelfrows import rows_of_readelf
from tests.unit.references import assembled, open_cfi, open_elf, without_section_headers
from tests.unit.unwindrows import SIGNAL_FRAME, SIGNAL_RETURN, Kind, decode
from tracelloc.architecture.x86_64 import ends_in_call
from tracelloc.files.cfi import core
from tracelloc.files.cfi.core import RuleSet
from tracelloc.files.cfi.module import FALLBACK_ROW, Cfi
from tracelloc.files.elf import ElfFile


def library(pattern: str) -> Path:
    return max(LIBRARIES.glob(pattern))


PATTERNS = ["libc.so.6", "libstdc++.so.6", "libpython3.*.so.1.0", "libcrypto.so.3"]

# -- against readelf

NAMES = {
    name: number
    for number, name in enumerate(
        ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16))]
    )
} | {"ra": 16}


def as_readelf(rule: tuple[int, int, bytes] | None) -> str:
    if rule is None:
        return "u"
    how, number, _ = rule
    return {
        core.UNDEFINED: "u",
        core.SAME: "s",
        core.OFFSET: f"c{number:+d}",
        core.VAL_OFFSET: f"v{number:+d}",
        core.REGISTER: f"r{number}",
        core.EXPRESSION: "exp",
        core.VAL_EXPRESSION: "vexp",
    }[how]


def compared_with(rows: Iterable[Any], cfi: Cfi, names: Mapping[str, int]) -> Iterator[RuleSet]:
    """The rules of each row of readelf's, which say the same."""
    title = {number: name for name, number in names.items()}
    for address, cfa, theirs in rows:
        ours = cfi.rules(address)
        where = f"{title.get(ours.cfa_register)}{ours.cfa_offset:+d}"
        assert cfa == ("exp" if ours.cfa_expression else where), hex(address)
        mine = {number: as_readelf(ours.registers.get(number)) for number in theirs}
        assert mine == theirs, hex(address)
        assert set(ours.registers) <= set(theirs), hex(address)
        yield ours


@pytest.mark.parametrize("pattern", PATTERNS)
def test_equals_readelf(pattern: str) -> None:
    """All rows of a file."""
    path = library(pattern)
    found = [*compared_with(rows_of_readelf(path, NAMES), open_cfi(path), NAMES)]
    assert {rules.return_register for rules in found} == {NAMES["ra"]}
    assert len(found) > 20_000


# -- many at once


@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_at_once_equal_single_ones(pattern: str) -> None:
    """For call sites, and for any addresses at all, in any order."""
    cfi = open_cfi(library(pattern))
    sites = cfi.call_sites()
    rng = random.Random(1)
    last = int(sites[-1]) + 5000
    some = rng.sample(sites.tolist(), 4000) + [rng.randrange(last) for _ in range(4000)]
    some += [0, 1, last, 1 << 62, (1 << 64) - 1]
    rng.shuffle(some)
    at_once = cfi.rows(np.array(some, np.uint64)).tolist()
    single = open_cfi(library(pattern))
    assert at_once == [single.row(address) for address in some]
    assert len({row & 0xFF for row in at_once}) >= 2


def test_call_sites_equal_objdump() -> None:
    """All that objdump sees behind a call in code that has information is there."""
    path = library("libpython3.*.so.1.0")
    pattern = re.compile(
        r"^ +([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *\t(?:bnd |notrack )?call ", re.MULTILINE
    )
    real = {
        int(m[1], 16) + len(m[2]) // 3 - 1 for m in pattern.finditer(run("objdump", "-dw", path))
    }
    cfi = open_cfi(path)
    found = cfi.call_sites().tolist()
    rows = cfi.rows(np.array(sorted(real), np.uint64))
    real = {at for at, row in zip(sorted(real), rows.tolist(), strict=True) if row != FALLBACK_ROW}
    assert len(real) > 50_000
    assert real <= set(found)
    assert len(found) == len(set(found))
    assert found == sorted(found)
    assert len(found) < 1.05 * len(real)


def find_calls(code: bytes, address: int, start: int, end: int) -> list[int]:
    found = np.zeros(len(code), np.uint64)
    return found[: core.find_calls(code, address, start, end, found)].tolist()


def test_calls_in_any_bytes() -> None:
    """The scan sees what the check of single addresses sees, in random bytes."""
    rng = random.Random(3)
    common = b"\xff\xe8\x14\x25\x94\x54\x15\xd0\x55\x95"
    code = bytes(
        rng.choice(common) if rng.random() < 0.7 else rng.randrange(256) for _ in range(50_000)
    )
    found = set(find_calls(code, 1000, 0, (1 << 64) - 1))
    expected = {
        1000 + end - 1 for end in range(8, len(code) + 1) if ends_in_call(code[end - 8 : end])
    }
    assert {at for at in found if at >= 1007} == expected
    assert find_calls(b"\xe8\0\0", 0, 0, 9) == []
    # A direct call counts where it leads to code.
    call = b"\xe8\x10\0\0\0\0\0\0"
    assert find_calls(call, 0x100, 0x115, 0x116) == [0x104]
    assert find_calls(call, 0x100, 0x116, 0x120) == []


# -- other tables than usual


def function_rows(cfi: Cfi, path: Path, name: str) -> list[int]:
    ((start, size),) = open_elf(path).find_functions([name])[name].items()
    return [cfi.row(address) for address in range(start, start + size)]


FLAGS = ("-O2", "-fomit-frame-pointer", "-Wl,-z,lazy")
NO_EH = ("-fno-asynchronous-unwind-tables", "-g")


@pytest.mark.parametrize(
    "flags",
    [
        ("-Wl,--no-eh-frame-hdr",), NO_EH, (*NO_EH, "-gz"),
        (*NO_EH, "-Wl,--compress-debug-sections=zlib-gnu"),
        (*NO_EH, "-Wl,--compress-debug-sections=zstd"), (*NO_EH, "-Wa,--gdwarf-cie-version=1"),
        (*NO_EH, "-Wa,--gdwarf-cie-version=3"), (*NO_EH, "-Wa,--gdwarf-cie-version=4"),
    ],
    ids=[
        "no header", "debug_frame", "zlib", "zdebug", "zstd", "version 1", "version 3", "version 4",
    ],
)  # fmt: skip
def test_other_tables(builder: Builder, flags: tuple[str, ...]) -> None:
    """The same program has the same rows, wherever they are written."""
    usual = builder.c("frames", *FLAGS)
    other = builder.c("frames", *FLAGS, *flags)
    for name in ("main", "realigned_twice", "with_alloca", "on_signal"):
        expected = function_rows(open_cfi(usual), usual, name)
        assert len(set(expected)) > 1
        cfi = open_cfi(other)
        assert function_rows(cfi, other, name) == expected
        sites = cfi.call_sites()
        assert cfi.rows(sites).tolist() == [cfi.row(site) for site in sites.tolist()]


def test_what_cannot_be_read_is_said(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = builder.c("frames", *FLAGS, *NO_EH, "-Wl,--compress-debug-sections=zstd")
    cfi = open_cfi(path)
    assert set(function_rows(cfi, path, "main")) == {FALLBACK_ROW}
    assert cfi.trouble == (
        "debug information is compressed by zstd: install the Python package zstandard"
    )


def test_without_section_headers(builder: Builder, tmp_path: Path) -> None:
    path = builder.c("frames", *FLAGS)
    bare = without_section_headers(path, tmp_path / "bare")
    assert open_elf(bare).section_header(".eh_frame") is None
    cfi = open_cfi(bare)
    assert function_rows(cfi, path, "main") == function_rows(open_cfi(path), path, "main")


def test_nothing_known(builder: Builder, tmp_path: Path) -> None:
    """Code without information gets the row of a frame pointer, but a signal return its own."""
    text = ".globl _start\n_start: nop\nback: mov $15, %rax\nsyscall\nnop\n"
    elf = open_elf(assembled(tmp_path, f"{text}.section .note.GNU-stack\n"))
    start = next(s for s in elf.segments if s.executable).address
    cfi = Cfi(elf)
    assert len(cfi.call_sites()) == 0
    wanted = [start, start + 1, start + 2, 5, 1 << 63]
    expected = [SIGNAL_FRAME.row(0)] * 2 + [FALLBACK_ROW] * 3
    assert [cfi.row(address) for address in wanted] == expected
    assert cfi.rows(np.array(wanted, np.uint64)).tolist() == expected


def test_the_kernel_page_and_signal_returns() -> None:
    """Its own information says what ours says for those that have none."""
    path = library("libc.so.6")
    code = path.read_bytes()
    elf = open_elf(path)
    found = Cfi(elf).rules(elf.address_of(code.index(SIGNAL_RETURN)) - 1)
    assert (found.cfa_expression, found.is_signal) == (SIGNAL_FRAME.cfa_expression, True)
    assert found.registers == SIGNAL_FRAME.registers
    # The vdso is an ELF file too.
    line = next(x for x in Path("/proc/self/maps").read_text().splitlines() if "[vdso]" in x)
    start, end = (int(number, 16) for number in line.split()[0].split("-"))
    with Path("/proc/self/mem").open("rb") as memory:
        memory.seek(start)
        data = memory.read(end - start)
    elf = ElfFile(in_memory(data))
    cfi = Cfi(elf)
    ((address, _),) = elf.find_functions(["__vdso_getcpu"])["__vdso_getcpu"].items()
    assert decode(cfi.row(address)).kind is Kind.SP
    assert decode(cfi.row(address)).cfa_offset == 8
