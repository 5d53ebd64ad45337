"""Notes of USDT probes, what the probes on them are told, and what weights become."""

import ctypes
import random
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.unit.events import A, F, records
from tests.unit.hostile import MadeSection, elf_bytes
from tracelloc import probes
from tracelloc.errors import TargetError
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.usdt import UsdtArgument, usdt_probes, usdt_providers
from tracelloc.files.machinecode.probeoffsets import nop_at
from tracelloc.heap.sampling import GIVEN, weighed
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import WEIGHT_BITS
from tracelloc.record.mallocs.discovery import (
    MallocChoice,
    Module,
    allocators_in,
    provider_in,
    why_no_reports,
)
from tracelloc.record.mallocs.families import PROVIDERS
from tracelloc.record.probe_points.placement import usdt_points
from tracelloc.record.worker.targetfile import TargetFile
from tracelloc.show.analysis.differences import amounts

OTEL = MallocChoice(providers=PROVIDERS[:1])
# Words of struct pt_regs.
R15, R12, RBP, RBX, R8, RAX, RDX, RSI, RDI, RIP, RSP = 0, 3, 4, 5, 9, 10, 12, 13, 14, 16, 19
NO = 0xFF


def at(
    base: int = NO,
    constant: int = 0,
    *,
    index: int = NO,
    shift: int = 0,
    memory: bool = True,
    size: int = 8,
    skip: int = 0,
) -> UsdtArgument:
    """Below 0: a signed one."""
    constant &= (1 << 64) - 1
    return UsdtArgument(constant, base, index, shift, memory, skip, abs(size), size < 0)


def held(register: int, size: int = 8, skip: int = 0) -> UsdtArgument:
    return at(register, memory=False, size=size, skip=skip)


def note(
    name: str = "alloc",
    arguments: str = "8@%rdi 8@%rsi -8@%rdx",
    *,
    addresses: tuple[int, int, int] = (0x400800, 0, 0x400200),
    provider: str = "otel_memory",
    owner: bytes = b"stapsdt\0",
    kind: int = 3,
) -> bytes:
    content = struct.pack("<QQQ", *addresses)
    content += b"\0".join(word.encode() for word in (provider, name, arguments)) + b"\0"
    head = struct.pack("<III", len(owner), len(content), kind) + owner + bytes(-len(owner) % 4)
    return head + content + bytes(-len(content) % 4)


def file_of(*notes: bytes, base: bool = False, code: bytes = b"\x90") -> bytes:
    """Its first page is mapped at 0x400000; code is at 0x400800 of it."""
    sections = [MadeSection(".text", code, offset=0x800)]
    sections.append(MadeSection(".note.stapsdt", b"".join(notes), kind=7))
    if base:
        sections.append(MadeSection(".stapsdt.base", b"\0"))
    programs = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 0x1000, 0x1000, 4096)
    whole = bytearray(elf_bytes(sections, programs=programs).ljust(0x1000, b"\xcc"))
    whole[0x800 : 0x800 + len(code)] = code
    return bytes(whole)


def probes_in(*notes: bytes, base: bool = False) -> list:
    elf = ElfFile(elf_bytes(
        [MadeSection(".note.stapsdt", b"".join(notes), kind=7),
         *([MadeSection(".stapsdt.base", b"\0")] if base else [])]
    ))  # fmt: skip
    return usdt_probes(elf, "otel_memory")


def test_notes_also_of_moved_files_and_hostile_ones() -> None:
    found = probes_in(
        note("other", provider="libc"),
        note(owner=b"GNU\0"),
        note(kind=4),
        note(),
        note("free", "8@-24(%rsp)", addresses=(0x1234, 0, 0)),
    )
    assert [(p.name, p.address, p.semaphore) for p in found] == [
        ("alloc", 0x400800, 0x400200), ("free", 0x1234, 0),
    ]  # fmt: skip
    assert found[0].arguments == (held(RDI), held(RSI), held(RDX, -8))
    assert found[1].arguments == (at(RSP, -24),)
    # The base's section is at 0 here: it was linked to lie at 0x400000.
    (found,) = probes_in(note(addresses=(0x400800, 0x400000, 0x400200)), base=True)
    assert (found.address, found.semaphore) == (0x800, 0x200)
    (found,) = probes_in(note(addresses=(0x100, 0x400000, 0)), base=True)
    assert (found.address, found.semaphore) == (0x100 - 0x400000 & (1 << 64) - 1, 0)
    assert probes_in(b"\xff" * 64) == []
    assert probes_in(struct.pack("<III", 8, 8, 3) + b"stapsdt\0" + bytes(8)) == []
    assert probes_in(note()[:-20]) == []
    with pytest.raises(ValueError, match="more than 4,096 probes"):
        probes_in(*[note()] * 4097)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8@%rax", held(RAX)), ("-8@%r15", held(R15, -8)), ("8@(%r12)", at(R12)),
        ("4@%eax", held(RAX, 4)), ("-2@%ax", held(RAX, -2)), ("-1@%al", held(RAX, -1)),
        ("1@%ah", held(RAX, 1, skip=8)), ("-4@%r8d", held(R8, -4)), ("2@%r8w", held(R8, 2)),
        ("1@%r8b", held(R8, 1)), ("1@%sil", held(RSI, 1)), ("8@%eax", held(RAX, 4)),
        ("%ebx", held(RBX, 4)), ("-4@$5", at(constant=5, memory=False, size=-4)),
        ("8@$-0x10", at(constant=-16, memory=False)), ("8@0x10(%rbp)", at(RBP, 16)),
        ("-8@56(%rsp)", at(RSP, 56, size=-8)), ("8@-3000000(%rbp)", at(RBP, -3000000)),
        ("-4@8(%rax,%rbx,2)", at(RAX, 8, index=RBX, shift=1, size=-4)),
        ("8@(,%rbx,8)", at(index=RBX, shift=3)), ("8@(%rax,%rbx)", at(RAX, index=RBX)),
        ("2@4096", at(constant=4096, size=2)), ("8f@%xmm0", None), ("8@%xmm0", None),
        ("8@x(%rip)", None), ("8@16(%rip)", None), ("8@%rip", None), ("8@", None), ("@", None),
        ("3@%rax", None), ("8@(%eax)", None), ("8@%fs:16", None), ("8@-8+4-(%rax)", None),
        ("8@99999999999999999999999(%rax)", None), ("8@(%rax,%rbx,3)", None), ("\udcff", None),
    ],
)  # fmt: skip
def test_places_of_arguments(text: str, expected: UsdtArgument | None) -> None:
    (found,) = probes_in(note(arguments=text.encode(errors="ignore").decode() or "?"))
    assert found.arguments == (expected,)


VARIABLES = """
#include "usdt.h"
USDT_COUNTER(p, n);
static long table[4] = {1, 2, 3, 4};
int main(void) {
    __asm__ volatile(USDT_NOTE(p, n, "-8@table(%%rip) 8@16+table(%%rip) 8@table+8 8@$table")
                     : : "r"(table));
}
"""


def test_variables(tmp_path: Path) -> None:
    """Where a file is mapped follows from where its probe is hit."""
    (tmp_path / "main.c").write_text(VARIABLES)
    headers = Path(__file__).parents[3] / "targets"
    command = ["gcc", "-I", headers, "main.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    elf = ElfFile((tmp_path / "main").read_bytes())
    (found,) = usdt_probes(elf, "p")
    address = elf.find_object("table")
    assert address is not None
    away = address - found.address
    assert found.arguments == (
        at(RIP, away, size=-8), at(RIP, away + 16), at(RIP, away + 8), at(RIP, away, memory=False)
    )  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        "usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        pytest.param("usr/lib/postgresql/*/bin/postgres", marks=pytest.mark.nightly),
    ],
)
def test_real_notes(pattern: str) -> None:
    """All that readelf finds."""
    path, *_ = Path("/").glob(pattern)
    listed = run("readelf", "-nW", path)
    elf = ElfFile(path.read_bytes())
    found = [probe for name in usdt_providers(elf) for probe in usdt_probes(elf, name)]
    lines = [line.split() for line in listed.splitlines() if " Arguments: " in line + " "]
    assert sorted(len(line) - 1 for line in lines) == sorted(len(p.arguments) for p in found)
    assert all(each is not None for probe in found for each in probe.arguments)
    assert found


def module(data: bytes) -> Module:
    return Module(("0:0", 1), "/opt/x/app", "/proc/self/fd/9", TargetFile.from_bytes(data, "app"))


def test_points_providers_and_nops() -> None:
    free = note("free", "8@-8(%rsp)", addresses=(0x400801, 0, 0))
    made = [module(file_of(note(), free, code=b"\x90\x66\x90"))]
    (allocator,) = allocators_in(made, OTEL)
    assert [f.names for f in allocator.functions] == [("alloc",), ("free",)]
    second, first = usdt_points(allocator)
    assert (first.program, first.offset, first.counter_offset) == ("usdt_alloc", 0x800, 0x200)
    assert (second.program, second.offset, second.counter_offset) == ("usdt_free", 0x801, 0)
    assert (first.is_single_stepped, second.is_single_stepped) == (False, True)
    roles = dict(first.arguments)
    assert roles == {"pointer": held(RDI), "size": held(RSI), "weight": held(RDX, -8)}
    assert second.arguments == (("pointer", at(RSP, -8)),)
    found = [module(file_of(note("mmap")))]
    assert provider_in(found, PROVIDERS) is None
    assert "not known" in why_no_reports(found, PROVIDERS)
    wanted = "it has no probes otel_memory:alloc or pytorch:malloc"
    assert why_no_reports([module(file_of())], PROVIDERS) == wanted
    other = module(file_of(note("mmap", provider="a\x1b[2J"), note("mmap", provider="libc")))
    assert why_no_reports([other], PROVIDERS) == wanted + r", only those of a\x1b[2J, libc"
    torch = note("malloc", "-8@%rbp -1@%al -8@%r12", provider="pytorch")
    both = [module(file_of(note())), module(file_of(torch))]
    for files, provider in zip(both, PROVIDERS, strict=True):
        assert provider_in([files], PROVIDERS) is provider
    with pytest.raises(TargetError, match="as otel_memory and pytorch, which can't be added up"):
        provider_in(both, PROVIDERS)
    sizes = {
        b"\x90\xc3": (1, False), b"\x66\x90": (2, False), b"\x0f\x1f\x40\0": (4, False),
        b"\x66\x0f\x1f\x44\0\0": (6, True), b"\xc3": (0, False), b"": (0, False),
    }  # fmt: skip
    assert {code: nop_at(code) for code in sizes} == sizes


@pytest.mark.parametrize(
    ("code", "arguments", "why"),
    [
        (b"\x0f\x1f\x44\0\0", "8@%rdi 8@%rsi 8@%rdx", "a nop of five bytes or more"),
        (b"\x66\x2e\x0f\x1f\x84\0\0\0\0\0", "8@%rdi 8@%rsi 8@%rdx", "five bytes or more"),
        (b"\xc3", "8@%rdi 8@%rsi 8@%rdx", "there is no nop"),
        (b"\x90", "8@%rdi 8@%rsi", "arguments are in places that can't be read"),
        (b"\x90", "8@%rdi 8@%rsi 8@%xmm7", "arguments are in places that can't be read"),
    ],
)
def test_what_is_refused(code: bytes, arguments: str, why: str) -> None:
    found = [module(file_of(note(arguments=arguments), code=code))]
    assert allocators_in(found, OTEL) == []
    assert why in why_no_reports(found, OTEL.providers)


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The probes' own arithmetic."""
    text = (probes.directory() / "usdt.bpf.c").read_text()
    text = text[text.index("static __always_inline u32 bit_length") :]
    text = text[: text.index("/* Reads what is reported")]
    head = (
        "#include <linux/types.h>\n#include <stdbool.h>\n#define __always_inline inline\n"
        'typedef __u64 u64;\ntypedef __u32 u32;\n#include "event.h"\n'
    )
    tail = "u64 coded(u64 size, u64 bytes) { return weighed(size, bytes); }\n"
    out = tmp_path_factory.mktemp("weights") / "weights.so"
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-fsanitize=undefined", "-fno-sanitize-recover=all",
         "-x", "c", "-", "-I", probes.directory(), "-o", out],
        input=head + text + tail, text=True, check=True, timeout=60,
    )  # fmt: skip
    library = ctypes.CDLL(str(out))
    library.coded.restype = ctypes.c_uint64
    library.coded.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    return library


def decoded(coded: int) -> tuple[int, float]:
    size, weight = weighed(np.array([coded], np.uint64))
    return int(size[0]), float(weight[0])


def test_weights_are_kept(in_c: ctypes.CDLL) -> None:
    rng = random.Random(4)
    for _ in range(20_000):
        size = rng.randrange(1, 1 << rng.randrange(1, 39))
        given = int(size * rng.choice([1.0, rng.uniform(1, 10), 2 ** rng.uniform(0, 24)]))
        coded = in_c.coded(size, given)
        assert coded < 1 << 56
        found, weight = decoded(coded)
        assert found == size
        assert abs(weight * size - given) <= given / 8191 + 1, (size, given)


@pytest.mark.parametrize(
    ("size", "given", "expected"),
    [(100, 100, 1.0), (100, 150, 1.5), (3, 3 * 4096, 4096.0), (100, 0, 1.0), (100, 99, 1.0),
     (0, 0, 1.0), (0, 512, 512.0), (1, (1 << 63) - 1, 2.0**32 - 2.0**19),
     ((1 << 39) - 1, (1 << 40) - 2, 2.0), (7, 7 * 8191, 8191.0)],
)  # fmt: skip
def test_weights_at_the_edges(in_c: ctypes.CDLL, size: int, given: int, expected: float) -> None:
    assert decoded(in_c.coded(size, given)) == (size, expected)


def test_the_table_counts_by_weight(in_c: ctypes.CDLL) -> None:
    """The core in C, and numpy on copies of blocks."""
    stacks = Stacks()
    stacks.indices(np.array([7], np.uint64))
    table = LiveTable(stacks, GIVEN)
    sizes = {0x1000: (100, 250), 0x2000: (64, 64 * 4096), 0x3000: (10, 33), 0x4000: (5, 5)}
    table.apply(records([
        *((A, address, in_c.coded(*pair), 7, 1) for address, pair in sizes.items()),
        (F, 0x4000, 0, 0, 2), (F, 0x9000, 0, 0, 2),
    ]))  # fmt: skip
    assert table.live_bytes == 250 + 64 * 4096 + 33
    assert int(table.totals.allocated_bytes.sum()) == 250 + 64 * 4096 + 33 + 5
    blocks = table.blocks()
    assert sorted(blocks.size.tolist()) == [10, 64, 100]
    found = amounts(blocks, GIVEN)
    assert int(found.size_bytes.sum()) == table.live_bytes
    assert int(found.parts.sum()) == int(table.totals.live_count.sum())
    count, size_bytes, largest = table.largest(2)
    assert (count, size_bytes) == (round(2.5 + 4096 + 3.3), table.live_bytes)
    assert largest.size.tolist() == [100, 64]
    assert largest.weight.tolist() == [2.5, 4096.0]
    assert table.raw_blocks().size.min() >= 10 << WEIGHT_BITS
    assert table.oddities.unmatched_frees == 1
