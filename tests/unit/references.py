"""What other programs say about addresses of a file, to compare with."""

import json
import os
import random
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.commands import run
from tests.harness import PATIENCE_S
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.demangle import without_arguments
from tracelloc.files.dwarf.lineprogram import Chain, SourceFrame
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.debugfiles import DebugFile, belongs_to, find_debug_file, references_of
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.worker.targetfile import TargetFile


def find_debug(
    elf: ElfFile, path: str, roots: Sequence[Path], troubles: list[str]
) -> DebugFile | None:
    """The debug file of an open one, judged in this process."""
    references = references_of(elf)

    def fits(found: DebugFile) -> bool:
        with closing(ElfFile(os.dup(found.descriptor()))) as debug:
            return belongs_to(debug, references, by_name=found.by_name)

    return find_debug_file(references, path, roots, fits, troubles)


def open_elf(path: Path | str) -> ElfFile:
    return ElfFile(os.open(path, os.O_RDONLY))


def open_cfi(path: Path | str) -> Cfi:
    return Cfi(open_elf(path))


def module_of(path: Path | str) -> Module:
    """A file as if a process had mapped it."""
    return Module(("0", 1), str(path), str(path), target_file(path))


def without_section_headers(path: Path, bare: Path) -> Path:
    """A copy of the file."""
    data = bytearray(path.read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff
    data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    bare.write_bytes(data)
    return bare


def assembled(directory: Path, text: str, *flags: str) -> Path:
    """A program of nothing but this assembly text; ``-shared`` makes it a library."""
    source, path = directory / "made.s", directory / "made"
    source.write_text(text)
    run("gcc", "-nostdlib", *(flags or ("-static",)), "-o", path, source)
    return path


def target_file(path: Path | str) -> TargetFile:
    return TargetFile(os.open(path, os.O_RDONLY), str(path))


def addresses_in_functions(path: Path, count: int, seed: int = 1) -> list[int]:
    """Random addresses within functions, large ones no likelier than small ones."""
    rows = [line.split() for line in run("nm", "-S", "--defined-only", path).splitlines()]
    functions = [(int(r[0], 16), int(r[1], 16)) for r in rows if len(r) == 4 and r[2] in "tTwWi"]
    rng = random.Random(seed)
    picked = rng.choices(functions, k=count)
    return [address + rng.randrange(size) for address, size in picked if size]


def _plain(path: str) -> str | None:
    """A path as compilers meant it.

    A relative compilation directory is put in front of itself by binutils and older LLVM;
    what is no path is the name of a symbol, given where there is no line.
    """
    path = re.sub(r"^(\./[\w-]+/)\1", r"\1", path)
    return path if "/" in path else None


def llvm(path: Path, addresses: Sequence[int]) -> list[Chain]:
    """Chains by llvm-symbolizer; () where it knows no file."""
    flags = "--no-demangle", "--inlines", "--output-style=JSON", "-e"
    asked = "\n".join(map(hex, addresses))
    out = run("llvm-symbolizer", *flags, path, input=asked, timeout=PATIENCE_S)
    chains = []
    for line in out.splitlines():
        symbols = json.loads(line)["Symbol"]
        chain = tuple(
            SourceFrame(
                symbol["FunctionName"],
                _plain(symbol["FileName"]),
                symbol["Line"] or None,
                inlined=number < len(symbols) - 1,
            )
            for number, symbol in enumerate(symbols)
        )
        chains.append(chain if chain and chain[0].file else ())
    return chains


def addr2line(path: Path, addresses: Sequence[int]) -> list[Chain]:
    """Chains by GNU addr2line; () where it knows no file."""
    asked = map(hex, addresses)
    out = run("addr2line", "-a", "-f", "-i", "-e", path, *asked, timeout=PATIENCE_S)
    chains = []
    for block in re.split(r"^0x[0-9a-f]{16}\n", out, flags=re.MULTILINE)[1:]:
        lines = block.splitlines()
        frames = []
        for n in range(0, len(lines), 2):
            file, _, line = lines[n + 1].split(" (")[0].rpartition(":")
            number = int(line) if line.isdigit() and line != "0" else None
            is_inner = n < len(lines) - 2
            frames.append(SourceFrame(lines[n], _plain(file), number, inlined=is_inner))
        chains.append(tuple(frames) if frames[0].file else ())
    return chains


def places(chain: Chain) -> list[tuple[str | None, int | None]]:
    """Where the frames of a chain are; nowhere without any file, as cold parts by gcc 14."""
    return [(f.file, f.line) for f in chain] if any(f.file for f in chain) else []


def inlined_names(chain: Chain) -> list[str | None]:
    """The functions that were inlined. (The last one has several names; symbols know best.)"""
    return [
        frame.function and without_arguments(frame.function) for frame in chain if frame.inlined
    ]


def unlike(mine: Sequence[Chain], expected: Sequence[Chain]) -> list[tuple[Chain, Chain]]:
    """Pairs of chains that are of other places, or of which other functions were inlined."""
    return [
        (a, b)
        for a, b in zip(mine, expected, strict=True)
        if places(a) != places(b) or (b and inlined_names(a) != inlined_names(b))
    ]
