"""Lines, inlined functions and variables of real files, against other readers."""

from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import TARGETS, Builder
from tests.unit.references import (
    addr2line,
    addresses_in_functions,
    assembled,
    llvm,
    open_elf,
    places,
    unlike,
)
from tracelloc.files.dwarf.info import DebugInfo
from tracelloc.files.dwarf.lineprogram import Chain, LineIndex
from tracelloc.files.dwarf.sourcelines import SourceLines

ADDRESSES = 2000
NO_ARANGES = "--remove-section=.debug_aranges"
WRONG = 0.001  # The share of chains that may differ: compilers and LLVM have faults of their own


def objcopy(path: Path, out: Path, *flags: str) -> Path:
    run("objcopy", *flags, path, out)
    return out


# Language, source and flags; what objcopy changes; the share of addresses in inlined functions.
KINDS = {
    "g++ DWARF 5": ("cpp", "shelves", "-O2 -gdwarf-5", "", 0.3),
    "g++ DWARF 4": ("cpp", "shelves", "-O2 -gdwarf-4", "", 0.3),
    "g++ DWARF 5, no aranges": ("cpp", "shelves", "-O2 -gdwarf-5", NO_ARANGES, 0.3),
    "g++ zlib": ("cpp", "shelves", "-O2 -gdwarf-5", "--compress-debug-sections=zlib", 0.3),
    "g++ .zdebug": ("cpp", "shelves", "-O2 -gdwarf-4", "--compress-debug-sections=zlib-gnu", 0.3),
    "gcc DWARF 2": ("c", "churn", "-O2 -gdwarf-2 -gstrict-dwarf", "", 0.0),
    "gcc DWARF 3": ("c", "churn", "-O2 -gdwarf-3 -gstrict-dwarf", "", 0.0),
    "gcc DWARF 5, 64-bit": ("c", "churn", "-O2 -gdwarf-5 -gdwarf64", "", 0.0),
    "gcc without optimisation": ("c", "churn", "-O0", "", 0.0),
    "rustc release, DWARF 4": ("rust", "chain", "-g -Copt-level=3 -Cdwarf-version=4", "", 0.3),
    "rustc release, DWARF 5, no aranges": (
        "rust", "chain", "-g -Copt-level=3 -Cdwarf-version=5", NO_ARANGES, 0.3,
    ),
    "rustc debug": ("rust", "chain", "-g -Copt-level=0", "", 0.2),
}  # fmt: skip


def build(kind: str, builder: Builder, directory: Path) -> Path:
    """A file with debug information of a certain kind."""
    language, source, flags, change, _ = KINDS[kind]
    path = getattr(builder, language)(source, *flags.split())
    return objcopy(path, directory / "file", change) if change else path


def assert_equal(mine: list[Chain], expected: list[Chain]) -> None:
    """The innermost lines, then whole chains with the names of what was inlined."""
    assert len(mine) == len(expected)
    pairs = list(zip(mine, expected, strict=True))
    wrong = [pair for pair in pairs if places(pair[0])[:1] != places(pair[1])[:1]]
    assert len(wrong) <= WRONG * len(pairs), wrong[:3]
    wrong = unlike(mine, expected)
    assert len(wrong) <= WRONG * len(pairs), wrong[:3]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.long] if "rustc" in k else []) for k in KINDS]
)
def test_chains_equal_llvm(builder: Builder, tmp_path: Path, kind: str) -> None:
    path = build(kind, builder, tmp_path)
    addresses = addresses_in_functions(path, ADDRESSES)
    lines = SourceLines(open_elf(path))
    mine = lines.chains(addresses)
    assert lines.reason is None
    assert_equal(mine, llvm(build("g++ DWARF 4", builder, tmp_path), addresses)
                 if kind == "g++ .zdebug" else llvm(path, addresses))  # fmt: skip
    assert sum(len(chain) > 1 for chain in mine) >= KINDS[kind][-1] * len(addresses)
    # And again, out of what is remembered; alone, and in another order.
    assert lines.chains(addresses[::-1]) == mine[::-1]
    assert lines.chains(addresses[:1]) == mine[:1]


def test_zstd(builder: Builder, tmp_path: Path) -> None:
    plain = build("g++ DWARF 5", builder, tmp_path)
    packed = objcopy(plain, tmp_path / "packed", "--compress-debug-sections=zstd")
    addresses = addresses_in_functions(plain, ADDRESSES)
    lines = SourceLines(open_elf(packed))
    assert lines.chains(addresses) == SourceLines(open_elf(plain)).chains(addresses)
    assert lines.reason is None


def libc_debug() -> tuple[Path, Path]:
    """The C library and the file that Debian has its debug information in."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = Path(next(x for x in maps if "libc.so" in x).split(maxsplit=5)[5])
    build_id = run("readelf", "-n", libc).partition("Build ID: ")[2].split()[0]
    return libc, Path(f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug")


def test_separate_debug_file() -> None:
    """The stripped C library knows nothing itself; its lines are in another file."""
    libc, debug = libc_debug()
    addresses = addresses_in_functions(debug, ADDRESSES)
    alone = SourceLines(open_elf(libc))
    assert alone.reason == "the file has no debug information"
    assert alone.chains(addresses) == [()] * len(addresses)
    lines = SourceLines(open_elf(libc), open_elf(debug))
    mine = lines.chains(addresses)
    assert lines.reason is None
    assert_equal(mine, llvm(debug, addresses))
    # addr2line gives the right line, and now and then the file that includes it.
    numbers = [chain[0].line if chain else None for chain in addr2line(debug, addresses[:500])]
    assert [chain[0].line if chain else None for chain in mine[:500]] == numbers


def test_names_and_lines_by_address(builder: Builder) -> None:
    """The last one has its linkage name, and is what nm finds there."""
    path = build("g++ DWARF 5", builder, Path())
    elf = open_elf(path)
    addresses = addresses_in_functions(path, 300)
    chains = [chain for chain in SourceLines(elf).chains(addresses) if chain]
    assert len(chains) > 250
    names = {chain[-1].function for chain in chains}
    assert "_ZN4shop5PieceIdED0Ev" in names
    assert "main" in names
    assert not any(chain[-1].inlined for chain in chains)
    assert all(frame.inlined for chain in chains for frame in chain[:-1])
    # Lines alone: main begins at its brace.
    elf = open_elf(builder.c("churn", "-O0"))
    (address,) = elf.find_functions(["main"])["main"]
    source = TARGETS / "churn.c"
    number = source.read_text().splitlines().index("int main(int argc, char **argv)") + 2
    index = LineIndex(DebugInfo(elf))
    unit, *others = index.units([address, 0, (1 << 64) - 1])
    assert index.line_in(unit, address) == (str(source), number)
    assert others == [None, None]
    assert index.units([]) == []


def test_units_that_name_no_code(tmp_path: Path) -> None:
    """A unit without any range: what its line program covers is found."""
    elf = open_elf(assembled(tmp_path, BARE))
    (address,) = elf.find_functions(["_start"])["_start"]
    (inside, outside) = SourceLines(elf).chains([address + 1, address + 500])
    assert places(inside) == [("/somewhere/bare.c", 7)]
    assert outside == ()


BARE = """
    .file 1 "/somewhere/bare.c"
    .text
    .globl _start
    .type _start, @function
_start:
    .loc 1 7
    nop
    nop
    .size _start, .-_start
    .section .debug_abbrev,"",@progbits
    .uleb128 1; .uleb128 0x11; .byte 0; .uleb128 0x10; .uleb128 0x17; .byte 0, 0, 0
    .section .debug_info,"",@progbits
    .long 2f - 1f
1:  .value 4
    .long .debug_abbrev
    .byte 8
    .uleb128 1
    .long .debug_line
2:
    .section .debug_line,"",@progbits
"""


SOURCE = """\
int plain[4] = {1};
static long quiet = 2;
namespace app {
    char letters[100];
    struct Shop { static int count; };
    int Shop::count = 3;
}
extern int declared;
int declared = 4;
int use(int n) {
    static int calls = 5;
    return plain[n] + quiet + app::letters[n] + app::Shop::count + declared + ++calls;
}
int main(int argc, char **) { return use(argc - 1); }
"""
LINES = {
    "plain": 1, "quiet": 2, "app::letters": 4, "app::Shop::count": 6, "declared": 9, "calls": 11,
}  # fmt: skip


@pytest.mark.parametrize(
    "flags", [("-gdwarf-4",), ("-gdwarf-5",), ("-gdwarf-5", "-O2"), ("-g", "-flto")], ids=" ".join
)
def test_variables(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source, program = tmp_path / "app.cc", tmp_path / "app"
    source.write_text(SOURCE)
    run("g++", *flags, "-no-pie", "-o", program, source)
    rows = run("nm", "-C", program).splitlines()
    found = {row.split(maxsplit=2)[2]: int(row.split()[0], 16) for row in rows if row[0] != " "}
    addresses = {
        name: address
        for name in LINES
        for full, address in found.items()
        if full.partition(".")[0].endswith(name)
    }
    lines = SourceLines(open_elf(program))
    wanted = [addresses[name] for name in LINES if name in addresses]
    assert len(wanted) >= 5, "optimizing may leave one out"
    assert lines.variables(wanted) == [
        (str(source), LINES[name]) for name in LINES if name in addresses
    ]
    assert lines.variables([wanted[0] + 1, 0]) == [(None, None), (None, None)]
    assert lines.reason is None


def test_without_debug_information(tmp_path: Path) -> None:
    source, program = tmp_path / "app.cc", tmp_path / "app"
    source.write_text(SOURCE)
    run("g++", "-o", program, source)
    assert SourceLines(open_elf(program)).variables([1, 2]) == [(None, None), (None, None)]
