"""Symbols of real files against nm, and files that are none."""

import os
import random
import shutil
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.commands import run
from tests.harness import Builder
from tests.unit.references import module_of, open_elf, target_file
from tracelloc.files.elf import ElfFile, NotElfError
from tracelloc.files.elf.headers import PF_X, PT_LOAD, HeaderError, Headers
from tracelloc.record.mallocs.discovery import MallocChoice, discover, functions_of
from tracelloc.record.mallocs.families import FAMILIES, FunctionKind
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY


def nm(path: Path, *flags: str) -> list[tuple[int, int, str, str]]:
    """(address, size, type letter, name) of the defined symbols with a size."""
    rows = [line.split() for line in run("nm", "-S", "--defined-only", *flags, path).splitlines()]
    return [(int(r[0], 16), int(r[1], 16), r[2], r[3]) for r in rows if len(r) == 4]


def libc() -> Path:
    line = next(x for x in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in x)
    return Path(line.split(maxsplit=5)[5])


@pytest.mark.long
def test_symbols_equal_nm(builder: Builder) -> None:
    """Every byte of every function is found under one of the names nm has for it."""
    path = builder.rust("chain")
    elf = open_elf(path)
    functions = [row for row in nm(path) if row[2] in "tTwWi"]
    assert len(functions) > 300
    rng = random.Random(1)
    for address, size, _, _ in functions:
        inside = address + rng.randrange(size)
        symbol = elf.symbols.find(inside)
        assert symbol.address <= inside < symbol.address + symbol.size
        names = {n for a, s, _, n in functions if (a, s) == (symbol.address, symbol.size)}
        assert symbol.name in names


def test_find_functions_equals_nm_and_none_lies_between(builder: Builder) -> None:
    """Never the nearest symbol: outside of every function there is none."""
    path = builder.c("chain")
    functions = [(a, s) for a, s, kind, _ in nm(path) if kind in "tT"]
    end = max(a + s for a, s in functions)
    elf = open_elf(path)
    assert elf.symbols.find(0) is None
    assert elf.symbols.find(end + 100_000) is None
    path = libc()
    exported = {name.split("@")[0]: address for address, _, _, name in nm(path, "-D")}
    names = [name for family in FAMILIES for name in family.functions]
    found = open_elf(path).find_functions([*names, "no_such_function", "strlen", "lloc"])
    assert "strlen" not in found  # an IFUNC: its address is a resolver's
    assert "no_such_function" not in found
    assert "lloc" not in found
    assert {name for name in names if name in exported} == set(found)
    for name, addresses in found.items():
        assert exported[name] in addresses


def test_what_files_have_and_need(builder: Builder, tmp_path: Path) -> None:
    """And what they export; symbol tables have more."""
    names = ["malloc", "free", "main", "by_malloc", "no_such_function"]
    program, library = target_file(builder.c("books")), target_file(LIBRARY)
    for file in (program, library):
        file.look_up(names)
    assert (program.imports, program.exports) == ({"malloc", "free"}, set())
    assert (library.imports, library.exports) == (set(), {"malloc", "free"})
    program.close()
    library.close()
    elf = open_elf(libc())
    for name in ("malloc", "free", "strdup", "aligned_alloc", "calloc"):
        (address,) = elf.find_functions([name])[name]
        assert not elf.symbols.find(address).name.startswith("_")
    (address,) = elf.find_functions(["malloc"])["malloc"]
    offset = elf.offset_of(address)
    assert elf.address_of(offset) == address
    assert elf.offset_of(1 << 50) is None
    assert elf.address_of(1 << 50) is None
    assert len(elf.read(offset, 16)) == 16
    path = tmp_path / "stripped"
    shutil.copy(builder.c("chain"), path)
    run("strip", path)
    elf = open_elf(path)
    assert elf.symbols.find(elf.segments[1].address + 64) is None


def test_discovery() -> None:
    path = libc()
    module = module_of(path)
    functions = {function.names[0]: function for function in functions_of(discover([module]))}
    assert set(functions) >= {
        "malloc", "calloc", "realloc", "reallocarray", "free", "memalign", "posix_memalign",
        "valloc", "pvalloc",
    }  # fmt: skip
    assert functions["free"].signature.kind is FunctionKind.FREE
    assert functions["posix_memalign"].signature.kind is FunctionKind.POSIX_MEMALIGN
    assert len({function.offset for function in functions.values()}) == len(functions)
    everything = discover([module])
    for only in ("libc.so", "malloc", str(path)):
        assert discover([module], MallocChoice(only)) == everything
    for only in ("jemalloc", "/lib/other.so"):
        assert discover([module], MallocChoice(only)) == []


def headers_of(data: bytes) -> Headers:
    return Headers(lambda offset, size: data[offset : offset + size])


def object_of_32_bits(directory: Path) -> Path:
    source, made = directory / "one.c", directory / "short.o"
    source.write_text("int one;")
    run("gcc", "-m32", "-c", source, "-o", made)
    return made


@pytest.mark.long
def test_headers_equal_pyelftools(builder: Builder, tmp_path: Path) -> None:
    """Programs, a library, an object file, one of 32 bits and another byte order."""
    short, big = object_of_32_bits(tmp_path), tmp_path / "big.o"
    run("objcopy", "-I", "binary", "-O", "elf64-big", tmp_path / "one.c", big)
    paths = [libc(), builder.c("chain"), builder.rust("chain"), short, big]
    for path in paths:
        ours = headers_of(path.read_bytes())
        with path.open("rb") as file:
            theirs = ELFFile(file)
            assert ours.bits == theirs.elfclass
            assert len(ours.sections) == theirs.num_sections()
            for section in reversed(list(theirs.iter_sections())):
                found = ours.section(section.name)
                assert (found.offset, found.size_bytes, found.address, found.link) == (
                    section["sh_offset"], section["sh_size"], section["sh_addr"], section["sh_link"]
                )  # fmt: skip
            assert [
                (p.offset, p.address, p.file_size, p.flags & PF_X)
                for p in ours.programs
                if p.kind == PT_LOAD
            ] == [
                (p["p_offset"], p["p_vaddr"], p["p_filesz"], p["p_flags"] & PF_X)
                for p in theirs.iter_segments("PT_LOAD")
            ]
    assert headers_of(libc().read_bytes()).machine == "EM_X86_64"


def test_headers_that_promise_too_much(builder: Builder, tmp_path: Path) -> None:
    """Counts that stand elsewhere because they don't fit, and that the file can't have."""
    data = bytearray(builder.c("chain").read_bytes())
    whole = headers_of(bytes(data))
    table = int.from_bytes(data[0x28:0x30], "little")
    data[0x3C:0x3E] = bytes(2)  # e_shnum
    data[table + 0x20 : table + 0x28] = len(whole.sections).to_bytes(8, "little")
    data[0x3E:0x40] = b"\xff\xff"  # e_shstrndx
    data[table + 0x28 : table + 0x2C] = (len(whole.sections) - 1).to_bytes(4, "little")
    assert headers_of(bytes(data)).section(".text") == whole.section(".text")
    data[table + 0x20 : table + 0x28] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(HeaderError):
        headers_of(bytes(data)).section(".text")
    data = bytearray(object_of_32_bits(tmp_path).read_bytes())
    table = int.from_bytes(data[0x20:0x24], "little")
    data[0x30:0x32] = bytes(2)  # e_shnum
    data[table + 0x14 : table + 0x18] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(HeaderError, match="2147483648 sections"):
        headers_of(bytes(data))
    with pytest.raises(HeaderError):
        headers_of(bytes(data[:40]))


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01" * 40])
def test_not_elf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(NotElfError):
        ElfFile(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
