"""Frames of addresses in running processes, compared with the programs' files."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.harness import PATIENCE_S, TARGETS, Builder, Target, Targets, frames_of, refused
from tests.unit.files.elf.test_elf import nm
from tracelloc.files.dwarf import SourceLines
from tracelloc.model.codefiles import Unresolved
from tracelloc.model.frames import Frame
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.symbolization.modulesymbols import ModuleSymbols
from tracelloc.record.symbolization.symbolizer import SourceMap, Symbolizer


@contextmanager
def symbolizing(pid: int, sources: SourceMap | None = None) -> Iterator[Symbolizer]:
    with closing(AddressSpace(Process(pid))) as space:
        space.refresh()
        with closing(Symbolizer(space, sources)) as symbolizer:
            yield symbolizer


def frames_at(pid: int, *addresses: int, sources: SourceMap | None = None) -> list[Frame]:
    """Frames as they are known in the end."""
    with symbolizing(pid, sources) as symbolizer:
        return frames_of(symbolizer, addresses, PATIENCE_S)


def address_in(pid: int, path: Path, name: str, named: Path | None = None) -> int:
    """A return address one byte after the start of a function in a mapped file."""
    value = next(a for a, _, _, n in nm(named or path) if n == name)
    mapping = next(m for m in Process(pid).maps().mappings if m.path == str(path) and m.offset == 0)
    return mapping.start + value + 1


@pytest.fixture
def chain(builder: Builder, targets: Targets) -> tuple[Target, Path]:
    path = builder.c("chain")
    return targets.start(path), path


def test_frames_with_lines(chain: tuple[Target, Path]) -> None:
    target, path = chain
    address = address_in(target.pid, path, "middle")
    source = TARGETS / "chain.c"
    (frame,) = frames_at(target.pid, address)
    assert (frame.symbol, frame.offset, frame.module) == ("middle", 1, str(path))
    assert frame.file == str(source)
    # The line of the signature, or of the brace below it.
    lines = enumerate(source.read_text().splitlines(), 1)
    signature = next(n for n, text in lines if "void middle" in text)
    assert frame.line in (signature, signature + 1)
    assert not frame.inlined
    (frame,) = frames_at(target.pid, address, sources=SourceMap([(str(TARGETS), "/elsewhere")]))
    assert frame.file == "/elsewhere/chain.c"


def test_inlined_functions_are_frames(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    source = tmp_path / "inlined.cpp"
    source.write_text(
        "#include <cstdlib>\n#include <unistd.h>\n"
        "void *volatile kept;\n"
        "inline __attribute__((always_inline)) void deepest(long n) { kept = malloc(n); }\n"
        "inline __attribute__((always_inline)) void between(long n) { deepest(n * 2); }\n"
        "__attribute__((noinline)) void outer(long n) { between(n + 1); }\n"
        'int main() { char c; if (write(1, "ready\\n", 6) != 6) return 1;\n'
        "while (read(0, &c, 1) == 1) outer(c); }\n"
    )
    path = tmp_path / "inlined"
    run("g++", "-O1", "-g", source, "-o", path)
    target = targets.start(path)
    start, size = next((a, s) for a, s, _, n in nm(path) if n == "_Z5outerl")
    call = path.read_bytes()[start : start + size].index(b"\xe8") + 5
    base = address_in(target.pid, path, "_Z5outerl") - 1
    frames = frames_at(target.pid, base + call)
    assert [(f.symbol, f.line, f.inlined) for f in frames] == [
        ("deepest(long)", 4, True), ("between(long)", 5, True), ("outer(long)", 6, False),
    ]  # fmt: skip
    assert {f.address for f in frames} == {base + call}
    assert [f.offset for f in frames] == [None, None, call]


def test_names_before_lines(chain: tuple[Target, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that does not wait shows the module first, then the name, then the line."""
    target, path = chain
    address = address_in(target.pid, path, "middle")
    tables, lines = threading.Event(), threading.Event()
    find_all, chains = ModuleSymbols.find_all, SourceLines.chains

    def slow_names(self: ModuleSymbols, addresses: list[int]) -> object:
        assert tables.wait(PATIENCE_S)
        return find_all(self, addresses)

    def slow_chains(self: SourceLines, addresses: list[int]) -> object:
        assert lines.wait(PATIENCE_S)
        return chains(self, addresses)

    monkeypatch.setattr(ModuleSymbols, "find_all", slow_names)
    monkeypatch.setattr(SourceLines, "chains", slow_chains)
    with symbolizing(target.pid) as symbolizer:
        (frame,) = symbolizer.peek([address])
        assert (frame.symbol, frame.reason, frame.module) == (None, Unresolved.PENDING, str(path))
        assert frame.module_offset is not None
        assert not symbolizer.prepare([address], 0.01)
        before = symbolizer.version
        tables.set()
        while symbolizer.version == before:
            assert not symbolizer.prepare([address], 0.01)
        (frame,) = symbolizer.peek([address])
        assert (frame.symbol, frame.line) == ("middle", None)
        lines.set()
        assert symbolizer.prepare([address], PATIENCE_S)
        (frame,) = symbolizer.peek([address])
        assert frame.symbol == "middle"
        assert frame.line is not None


def test_failures_of_it_and_of_files(
    chain: tuple[Target, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, path = chain
    addresses = [address_in(target.pid, path, "middle"), 0x10]

    def broken(*_: object) -> None:
        raise RecursionError("what nobody has thought of")

    with symbolizing(target.pid) as symbolizer, monkeypatch.context() as patch:
        patch.setattr(Symbolizer, "_look_up", broken)
        for _ in range(2):
            with pytest.raises(RecursionError, match="what nobody has thought of"):
                frames_of(symbolizer, addresses, PATIENCE_S)
    monkeypatch.setattr(ModuleSymbols, "find_all", broken)
    with symbolizing(target.pid) as symbolizer:
        frames = frames_of(symbolizer, addresses, PATIENCE_S)
        assert [f.reason for f in frames] == [Unresolved.UNREAD, Unresolved.UNMAPPED]
        assert frames[0].module == str(path)
        module = next(m for m in symbolizer._space.modules if m.path == str(path))
        assert any("RecursionError" in trouble for trouble in module.elf.troubles)


def test_reasons(chain: tuple[Target, Path]) -> None:
    target, _ = chain
    maps = Process(target.pid).maps().mappings
    frames = frames_at(target.pid, 0x10, next(m for m in maps if m.path == "[stack]").start + 8)
    assert [f.reason for f in frames] == [Unresolved.UNMAPPED, Unresolved.NOT_CODE]
    assert frames[1].module == "[stack]"


def test_kernel_functions_have_names(chain: tuple[Target, Path]) -> None:
    target, _ = chain
    vdso = next(m for m in Process(target.pid).maps().mappings if m.path == "[vdso]")
    with symbolizing(target.pid) as symbolizer:
        module = next(m for m in symbolizer._space.modules if m.path == "[vdso]")
        name, places = next(iter(module.elf.find_functions(["__vdso_clock_gettime"]).items()))
        (address,) = places
        (frame,) = frames_of(symbolizer, [vdso.start + address + 2], PATIENCE_S)
    assert frame.symbol in (name, "clock_gettime")
    assert (frame.module, frame.offset) == ("[vdso]", 2)


def test_deleted_file_keeps_its_names(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    path = tmp_path / "gone"
    shutil.copy(builder.c("chain"), path)
    target = targets.start(path)
    address = address_in(target.pid, path, "middle")
    try:
        next(Path(f"/proc/{target.pid}/map_files").iterdir()).open("rb").close()
    except PermissionError:
        refused("files that a process has mapped can't be opened without a name")
    path.unlink()
    (frame,) = frames_at(target.pid, address)
    assert (frame.symbol, frame.module) == ("middle", str(path))


def test_stripped_with_debug_file(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    """Names and lines of a stripped file come from the debug file beside it."""
    original = tmp_path / "original"
    path = tmp_path / "program"
    debug = tmp_path / "program.debug"
    run("gcc", "-O1", "-g", "-pthread", TARGETS / "chain.c", "-o", original)
    run("objcopy", "--only-keep-debug", original, debug)
    run("strip", "-s", "-o", path, original)
    run("objcopy", f"--add-gnu-debuglink={debug}", path)
    target = targets.start(path)
    (frame,) = frames_at(target.pid, address_in(target.pid, path, "middle", original))
    assert (frame.symbol, frame.file) == ("middle", str(TARGETS / "chain.c"))
    assert frame.line is not None


def test_generated_code_is_named_when_its_map_appears(builder: Builder, targets: Targets) -> None:
    target = targets.start(builder.c("jit"), "JS:*render /srv/page.js:12:3")
    perf_map = Path(f"/tmp/perf-{target.pid}.map")
    try:
        start, size, _ = perf_map.read_text().split(maxsplit=2)
        assert int(size, 16) == 8
        address = int(start, 16) + 6
        with symbolizing(target.pid) as symbolizer:
            hidden = perf_map.rename(perf_map.with_suffix(".hidden"))
            (frame,) = frames_of(symbolizer, [address], PATIENCE_S)
            assert frame.reason is Unresolved.ANONYMOUS
            # A frame without a name is looked up once more in the background.
            assert symbolizer.prepare([address], PATIENCE_S)
            hidden.rename(perf_map)
            # What had no name is looked up again, but not at once.
            symbolizer._retried_s -= 60
            symbolizer.perf_map._next_look_s = 0
            (frame,) = frames_of(symbolizer, [address], PATIENCE_S)
        assert frame == Frame(
            address, "render", "JS:*render /srv/page.js:12:3", 6, 8, "[generated code]", None,
            file="/srv/page.js", line=12,
        )  # fmt: skip
    finally:
        perf_map.unlink(missing_ok=True)


def test_many_addresses_at_once(chain: tuple[Target, Path]) -> None:
    """Looking up addresses together gives the same frames as one by one, and the right names."""
    target, path = chain
    rng = np.random.default_rng(1)
    mappings = Process(target.pid).maps().mappings
    code = [m for m in mappings if m.executable and m.is_file]
    addresses = [int(rng.integers(m.start + 1, m.end)) for m in code for _ in range(40)]
    names = "innermost", "middle", "outermost", "recurse", "main"
    own = {address_in(target.pid, path, name): name for name in names}
    addresses = rng.permutation([*addresses, *own]).tolist()
    together = frames_at(target.pid, *addresses)
    with symbolizing(target.pid) as symbolizer:
        alone = [f for a in addresses for f in frames_of(symbolizer, [a], PATIENCE_S)]
    assert len(code) >= 3
    assert together == alone
    assert {f.address: f.symbol for f in together if f.address in own} == own
