"""Debug information that is damaged, or made to do harm: a reason, in time, never an error."""

import resource
import struct
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Builder
from tests.unit.references import addresses_in_functions, assembled, open_elf, places
from tracelloc.files.dwarf.sourcelines import SourceLines
from tracelloc.files.elf.sections import ElfSection, Packing, SectionError

HEAD = """
    .file 1 "/here.c"
    .text
    .globl _start
    .type _start, @function
_start:
    .loc 1 7
    .rept 256; nop; .endr
    .size _start, .-_start
end:
    .section .debug_abbrev,"",@progbits
    .uleb128 1; .uleb128 0x11; .byte 1
    .uleb128 0x10, 0x17, 0x11, 0x01, 0x12, 0x07; .byte 0, 0
    .uleb128 2; .uleb128 0x2e; .byte 1
    .uleb128 0x11, 0x01, 0x12, 0x07, 0x31, 0x13; .byte 0, 0
    .uleb128 3; .uleb128 0x1d; .byte 1
    .uleb128 0x31, 0x13, 0x55, 0x17, 0x59, 0x0b; .byte 0, 0
    .uleb128 4; .uleb128 0x2e; .byte 0
    .uleb128 0x55, 0x17; .byte 0, 0
    .uleb128 5; .uleb128 0x2e; .byte 0
    .uleb128 0x03, 0x08, 0x31, 0x13; .byte 0, 0
    .byte 0
    .section .debug_line,"",@progbits
    .section .debug_info,"",@progbits
unit:
    .long unit_end - unit - 4
    .value 4
    .long .debug_abbrev
    .byte 8
    .uleb128 1
    .long .debug_line
    .quad _start
    .quad end - _start
"""


def assemble(directory: Path, entries: str, ranges: str = "") -> tuple[SourceLines, int]:
    """A file with one function and these entries in its unit; the function's address."""
    text = f'{HEAD}{entries}\n .byte 0\nunit_end:\n .section .debug_ranges,"",@progbits\n'
    elf = open_elf(assembled(directory, f"{text}ranges:\n{ranges}\n .quad 0, 0\n"))
    (address,) = elf.find_functions(["_start"])["_start"]
    return SourceLines(elf), address


FUNCTION = "self: .uleb128 2; .quad _start, end - _start; .long {origin} - unit"


def test_names_that_refer_to_each_other(tmp_path: Path) -> None:
    lines, address = assemble(
        tmp_path,
        FUNCTION.format(origin="other")
        + '\n .byte 0\nother: .uleb128 5; .string "plain"; .long self - unit',
    )
    (chain,) = lines.chains([address + 3])
    assert chain[0].function == "plain"
    assert places(chain) == [("/here.c", 7)]
    lines, address = assemble(tmp_path, FUNCTION.format(origin="self") + "\n .byte 0")
    (chain,) = lines.chains([address + 3])
    assert chain[0].function is None


def test_nesting_without_end(tmp_path: Path) -> None:
    """A hundred thousand inlined functions, each in the one before it."""
    entry = ".rept 100000\n .uleb128 3; .long self - unit, ranges; .byte 9\n .endr"
    lines, address = assemble(
        tmp_path, FUNCTION.format(origin="self") + "\n" + entry, ranges=".quad 0, 256"
    )
    started = time.process_time()
    (chain,) = lines.chains([address + 3])
    assert time.process_time() - started < 10
    assert places(chain) == [("/here.c", 7), *[(None, None)] * 500]
    assert lines.reason == "only 500 inlined functions of one address are shown"


def test_one_long_list_for_many(tmp_path: Path) -> None:
    """50,000 functions share a list of 50,000 ranges: that would be 2.5 billion."""
    lines, address = assemble(
        tmp_path,
        ".rept 50000\n .uleb128 4; .long ranges\n .endr",
        ranges=".rept 50000\n .quad 2, 2\n .endr",
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    (chain,) = lines.chains([address + 3])
    assert time.process_time() - started < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 400_000
    assert lines.reason is not None
    assert places(chain) == [("/here.c", 7)]
    # Not again for the next one.
    started = time.process_time()
    lines.chains([address + n for n in range(256)])
    assert time.process_time() - started < 10


def test_from_several_threads(builder: Builder) -> None:
    path = builder.cpp("shelves", "-O2", "-gdwarf-5")
    addresses = addresses_in_functions(path, 200)
    lines = SourceLines(open_elf(path))
    expected = SourceLines(open_elf(path)).chains(addresses)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: lines.chains(addresses), range(4))) == [expected] * 4


def packed(kind: int, size: int, stored: bytes, packing: Packing = Packing.ELF) -> ElfSection:
    head = struct.pack("<IIQQ", kind, 0, size, 1)
    if packing is Packing.GNU:
        head = b"ZLIB" + struct.pack(">Q", size)
    data = head + stored
    return ElfSection(lambda at, size: data[at : at + size], 0, len(data), packing)


def test_sections_that_lie_and_swell() -> None:
    stored = zlib.compress(bytes(10_000))
    for kind, size, words in ((1, 1 << 40, "claims to hold"), (7, 10_000, "unknown way")):
        with pytest.raises(SectionError, match=words):
            packed(kind, size, stored)
    for size in (9_999, 10_001, 1_000_000):
        with pytest.raises(SectionError, match="holds"):
            packed(1, size, stored).data()
    for kind in (1, 2):
        with pytest.raises(SectionError, match="can't be decompressed"):
            packed(kind, 10_000, b"garbage").data()
    with pytest.raises(SectionError, match="cut short"):
        ElfSection(lambda at, size: b"", 0, 100, Packing.ELF)
    with pytest.raises(SectionError, match="cut short"):
        ElfSection(lambda at, size: b"abc", 0, 100).data()
    # A quarter of a gigabyte, and a size that says less: no more than that is unpacked.
    squeezer = zlib.compressobj(9)
    stored = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(1 << 8))
    section = packed(1, 1 << 22, stored + squeezer.flush())
    tracemalloc.start()
    try:
        with pytest.raises(SectionError, match="claims"):
            section.data()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
