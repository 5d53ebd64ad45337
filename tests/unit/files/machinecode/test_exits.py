"""Where functions end: in hand-made code, and in the operators of Debian's allocators."""

from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import LIBRARIES
from tests.unit.references import assembled, module_of, open_elf
from tracelloc.files.machinecode.codepaths import CodeReader
from tracelloc.record.mallocs.discovery import discover
from tracelloc.record.mallocs.families import LIBC
from tracelloc.record.probe_points.placement import plan_probes

FILES = {
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.*",
    "libstdc++": "libstdc++.so.6",
}


def functions(tmp_path: Path, body: str) -> tuple[CodeReader, dict[str, int]]:
    """A library of these functions, and the addresses of all labels."""
    library = assembled(tmp_path, f".text\n{body}\n", "-shared")
    rows = (line.split() for line in run("nm", library).splitlines())
    labels = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    return CodeReader(open_elf(library)), labels


FUNCTION = ".globl {0}\n.type {0}, @function\n{0}:\n.cfi_startproc\n{1}\n.cfi_endproc\n"


def function(name: str, code: str) -> str:
    return FUNCTION.format(name, code.replace(";", "\n"))


def test_every_path_is_followed(tmp_path: Path) -> None:
    reader, at = functions(
        tmp_path,
        function("first", "test %rdi, %rdi; je 1f; mov $1, %eax; r1: ret; 1: jmp second")
        + function("second", "push %rbx; call third; pop %rbx; jne 1f; r2: ret; 1: ud2")
        + function("third", "r3: ret")
        + function("loops", "1: dec %rdi; jne 1b; r4: repz ret"),
    )
    assert reader.exits(at["first"]).rets == {at["r1"], at["r2"]}
    assert reader.exits(at["loops"]).rets == {at["r4"]}
    assert not reader.exits(at["first"]).trouble


def test_what_cannot_be_followed_is_said(tmp_path: Path) -> None:
    reader, at = functions(
        tmp_path,
        function("table", "jmp *(%rdi, %rsi, 8)")
        + function("endless", "1: jmp 1b")
        + function("leaves", "jmp elsewhere@PLT")
        + function("broken", ".byte 0x06"),
    )
    assert "jmp" in reader.exits(at["table"]).trouble
    assert reader.exits(at["endless"]).trouble == "it has no ret instruction"
    assert "elsewhere of another file" in reader.exits(at["leaves"]).trouble
    assert reader.exits(at["broken"]).trouble == "its code can't be decoded"


def test_wrappers(tmp_path: Path) -> None:
    """A function leaves it to another one only if no path comes back without it."""
    reader, at = functions(
        tmp_path,
        function("wraps", "push %rbx; call malloc@PLT; pop %rbx; ret")
        + function("mostly", "test %rdi, %rdi; je 1f; jmp malloc@PLT; 1: ret")
        + function("own", "mov $1, %eax; ret"),
    )
    assert reader.always_calls(at["wraps"], names=LIBC.functions)
    assert not reader.always_calls(at["mostly"], names=LIBC.functions)
    assert not reader.always_calls(at["own"], names=LIBC.functions)


@pytest.mark.parametrize("name", FILES)
def test_operators_of_libraries(name: str) -> None:
    """No function that may throw has a return probe, and all that is needed has probes."""
    module = module_of(min(LIBRARIES.glob(FILES[name])))
    found = discover([module])
    planned = plan_probes(found)
    throwing = {
        function.offset: function
        for allocator in planned.allocators
        for function in allocator.functions
        if function.signature.throws
    }
    assert not {point.offset for point in planned.points if point.returns} & set(throwing)
    names = {name for function in throwing.values() for name in function.names}
    if name == "libstdc++":
        assert not planned.points  # it calls malloc and free
        return
    (new,) = (f for a in found for f in a.functions if "_Znwm" in f.names)
    # mimalloc 3's operator leaves all to a function that has probes.
    assert "_Znwm" in names or module.elf.always_calls(new.address, (), sorted(names))
    assert planned.has_throwing
    exits = [p for p in planned.points if p.is_exit]
    assert exits
    assert planned.points[: len(exits)] == tuple(exits)
    for point in exits:
        code = module.elf.read(point.offset, 2)
        assert code[:1] == b"\xc3" or code == b"\xf3\xc3"
    mine = [a for a in planned.allocators if a.family.name != "mimalloc"]
    assert [unseen for allocator in mine for unseen in allocator.unseen] == []
