"""Descriptions of processor architectures, and that nothing else compares machines."""

import ast
import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.test_architecture import MODULES, PACKAGE
from tracelloc import architecture
from tracelloc.architecture import ARCHITECTURES, elf_architecture, machine_architecture, native
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel import capabilities
from tracelloc.system.confined import Confinement, filter_of

# Names of machines, as code would compare them.
NAMES = re.compile(r"EM_\w+|(x86|amd|x86_|arm|aarch)-?64|i[3-6]86", re.IGNORECASE)
ASKS = {("platform", "machine"), ("platform", "processor"), ("sysconfig", "get_platform")}


def comparisons(path: Path) -> list[str]:
    """Names of machines in a module's strings, and calls that ask for this machine's."""
    text = path.read_text()
    if path.suffix != ".py":
        code = re.sub(r'""".*?"""|#[^\n]*', "", text, flags=re.DOTALL)
        return [word for word in re.findall(r'"(\w+)"', code) if NAMES.fullmatch(word)]
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(word)) if NAMES.fullmatch(word):
                found.append(word)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in ASKS:
                found.append(f"{module}.{name}")
    return found


def test_machines_by_name_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PACKAGE / "architecture"
    named = {path: found for path in MODULES if (found := comparisons(path))}
    assert {path for path in named if own not in path.parents} == set()
    assert set(named) == {own / "__init__.py", own / "x86_64.py", own / "aarch64" / "__init__.py"}
    assert native() is X86_64
    assert (machine_architecture("aarch64"), machine_architecture("riscv64")) == (AARCH64, None)
    assert (elf_architecture("EM_X86_64"), elf_architecture("EM_AARCH64")) == (X86_64, AARCH64)
    found = [elf_architecture("EM_X86_64", 32), elf_architecture("EM_386"), elf_architecture("8")]
    assert found == [None, None, None]
    monkeypatch.setattr(architecture.platform, "machine", lambda: "riscv64")
    with pytest.raises(UnsupportedError, match="does not run on riscv64"):
        native()
    for machine in ("x86_64", "aarch64"):
        capabilities.check_machine(machine)
    with pytest.raises(UnsupportedError, match="does not run on mips") as raised:
        capabilities.check_machine("mips")
    assert raised.value.hint == "it knows x86_64, aarch64"


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/aarch64-linux-gnu/include/asm-generic/unistd.h",
}
# Not in the headers of Linux 6.1, or not by a number.
NEWEST = {"newfstatat", "uretprobe", "uprobe", "futex_wake", "futex_wait", "mseal"}


@pytest.mark.parametrize("machine", ARCHITECTURES, ids=lambda each: each.name)
def test_system_calls_equal_the_headers(machine: architecture.Architecture) -> None:
    text = Path(HEADERS[machine.name]).read_text()
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.MULTILINE)
    theirs = {name: int(number) for name, number in found}
    ours = machine.system_calls.numbers
    common = {name: number for name, number in ours.items() if name in theirs}
    assert common == {name: theirs[name] for name in common}
    assert ours.keys() - common.keys() <= NEWEST
    assert max(ours.values()) <= machine.system_calls.newest
    assert not set(machine.system_calls.unassigned) & {
        number for name, number in theirs.items() if name not in {"syscalls", *NEWEST}
    }


def test_filters_allow_what_the_machine_has() -> None:
    """A filter for Arm: its own audit number first, and only its own calls."""
    for confinement in Confinement:
        instructions = list(struct.iter_unpack("=HBBI", filter_of(confinement, "aarch64")))
        assert instructions[1] == (0x15, 1, 0, 0xC00000B7)
        allowed = {
            first[3]
            for first, second in pairwise(instructions)
            if first[:3] == (0x15, 0, 1) and second == (0x06, 0, 0, 0x7FFF0000)
        }
        assert {63, 64, 57, 222, 215} <= allowed  # read, write, close, mmap, munmap
        assert (221 in allowed) == (confinement is Confinement.PROGRAM)  # execve
    assert filter_of(Confinement.READER, "riscv64") == b""


@pytest.mark.parametrize(
    ("word", "is_call"),
    [
        (0x94000001, True), (0x97FFFFFF, True), (0x14000001, False),  # bl, bl, b
        (0xD63F0000, True), (0xD63F03C0, True), (0xD61F0000, False),  # blr x0, blr x30, br x0
        (0xD63F081F, True), (0xD63F0C3F, True), (0xD73F0841, True), (0xD73F0C41, True),  # blraaz …
        (0xD65F03C0, False), (0xD65F0BFF, False), (0xD503201F, False),  # ret, retaa, nop
        (0xD63F0001, False), (0xD71F0841, False),  # unallocated, braa
    ],
)  # fmt: skip
def test_calls_of_arm(word: int, is_call: bool) -> None:
    assert AARCH64.ends_in_call(b"\x1f\x20\x03\xd5" + word.to_bytes(4, "little")) == is_call
    assert not AARCH64.ends_in_call(word.to_bytes(4, "little")[1:])
