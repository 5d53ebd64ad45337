"""Places in the allocators of Debian's packages, checked by another disassembler.

objdump decodes the whole library: whatever jumps, from wherever, must not lead behind the
entry and up to the probe, and nothing in between may branch or write to an argument.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import run
from tests.unit.files.elf.test_elf import libc
from tests.unit.references import open_elf
from tracelloc.files.machinecode.probeoffsets import find_probe_offset, is_emulated
from tracelloc.record.mallocs.families import LIBC

LIBRARIES = {
    "glibc": "",
    "jemalloc": "usr/lib/x86_64-linux-gnu/libjemalloc.so.*",
    "tcmalloc": "usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.*",
    "mimalloc": "usr/lib/x86_64-linux-gnu/libmimalloc.so.*",
    "musl": "lib/ld-musl-x86_64.so.1",
}
ONE, TWO = ("rdi",), ("rdi", "rsi")
ARGUMENTS = {
    **{name: signature.registers for name, signature in LIBC.functions.items()},
    "mallocx": TWO, "rallocx": ("rdi", "rsi", "rdx"), "dallocx": TWO, "sdallocx": TWO,
    "tc_malloc": ONE, "tc_free": ONE, "tc_calloc": TWO, "tc_realloc": TWO,
    "mi_malloc": ONE, "mi_free": ONE, "mi_calloc": TWO, "mi_realloc": TWO,
    "_Znwm": ONE, "_Znam": ONE, "_ZdlPv": ONE, "_ZdaPv": ONE, "_ZdlPvm": TWO,
}  # fmt: skip
PARTS = {
    "rdi": {"rdi", "edi", "di", "dil"},
    "rsi": {"rsi", "esi", "si", "sil"},
    "rdx": {"rdx", "edx", "dx", "dl", "dh"},
    "rsp": {"rsp", "esp", "sp", "spl"},
}
LINE = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")
TARGET = re.compile(r"^(?:0x)?([0-9a-f]+)\b")
BRANCHES = ("j", "call", "ret", "loop", "syscall", "int")
READS_ONLY = ("test", "cmp", "nop", "endbr64", "push", "bt", "prefetch")


@dataclass
class Line:
    """One instruction as objdump writes it, in Intel's order: destination first."""

    address: int
    name: str
    operands: str


@dataclass
class Listing:
    """A library's code."""

    lines: list[Line]
    at: dict[int, int]
    targets: list[int]


def disassemble(path: Path) -> Listing:
    text = run("objdump", "-d", "-M", "intel", "--no-show-raw-insn", path)
    lines, targets = [], []
    for row in text.splitlines():
        match = LINE.match(row)
        if not match:
            continue
        words = match[2].split("#")[0].split()
        while words and words[0] in ("bnd", "rep", "repz", "repnz", "lock", "notrack", "data16"):
            words.pop(0)
        if not words:
            continue
        line = Line(int(match[1], 16), words[0], " ".join(words[1:]))
        lines.append(line)
        if line.name.startswith(("j", "loop", "call")):
            target = TARGET.match(line.operands)
            if target:
                targets.append(int(target[1], 16))
    return Listing(lines, {line.address: n for n, line in enumerate(lines)}, sorted(targets))


def written(line: Line) -> set[str]:
    """Registers that may be written: the destination, and what is written by name alone."""
    if line.name.startswith(READS_ONLY):
        return set()
    destination = line.operands.split(",")[0]
    registers = set() if "[" in destination else {destination.split(" ")[-1]}
    if line.name == "xchg":
        registers.add(line.operands.split(",")[-1])
    if line.name in ("mul", "div", "idiv", "cqo", "cdq", "imul") and "," not in line.operands:
        registers.add("rdx")
    return registers


@pytest.mark.parametrize("name", LIBRARIES)
def test_nothing_leads_past_a_probe(name: str) -> None:
    paths = sorted(Path("/").glob(LIBRARIES[name])) if LIBRARIES[name] else [libc()]
    assert paths, f"{LIBRARIES[name]} belongs to what the tests install"
    path = paths[-1]
    elf = open_elf(path)
    listing = disassemble(path)
    checked = cheap = 0
    for function, places in elf.find_functions(ARGUMENTS).items():
        for entry, size in places.items():
            offset = elf.offset_of(entry)
            found = find_probe_offset(elf.read(offset, size), ARGUMENTS[function])
            checked += 1
            cheap += not found.is_single_stepped
            if found.is_single_stepped:
                assert found.offset == 0
                continue
            assert is_emulated(elf.read(offset + found.offset, 8))
            probe = entry + found.offset
            inside = [t for t in listing.targets if entry < t <= probe]
            assert not inside, f"{function}: {inside[0]:x} leads past the probe at {probe:x}"
            first, last = listing.at[entry], listing.at[probe]
            kept = set().union(*(PARTS[r] for r in (*ARGUMENTS[function], "rsp")))
            for line in listing.lines[first:last]:
                assert not line.name.startswith(BRANCHES), line
                assert not written(line) & kept, f"{function}: {line}"
    assert checked >= 6
    # mimalloc loads its thread's heap into rdi at once; elsewhere it is one function at most.
    assert checked - cheap <= (2 * checked // 3 if name == "mimalloc" else 2)
