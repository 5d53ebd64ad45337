"""Where names come from besides a file's own symbol table, against binutils."""

import lzma
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.commands import outcome, run
from tests.harness import TARGETS
from tests.unit.files.elf.test_elf import nm
from tests.unit.references import find_debug, open_elf, without_section_headers
from tracelloc.files.elf import ElfFile, SymbolTable
from tracelloc.files.elf.debugfiles import debug_link, embedded_symbols
from tracelloc.files.elf.plt import plt_functions
from tracelloc.record.process.procfs import Process
from tracelloc.record.symbolization import modulesymbols
from tracelloc.record.symbolization.modulesymbols import PerfMap, describe
from tracelloc.record.symbolization.symbolizer import SourceMap
from tracelloc.system.debugpackages import debug_hints
from tracelloc.system.syscalls import open_inside


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With symbols and DWARF; stripped copies are made of it."""
    path = tmp_path_factory.mktemp("sources") / "leaky"
    run("gcc", "-O1", "-g", "-pthread", "-Wl,--build-id", TARGETS / "leaky.c", "-o", path)
    return path


LINKAGES = {
    "lazy": ["-Wl,-z,lazy"],
    "now": ["-Wl,-z,now"],
    "lazy-ibt": ["-Wl,-z,lazy", "-fcf-protection=full", "-Wl,-z,ibtplt"],
    "now-ibt": ["-Wl,-z,now", "-fcf-protection=full", "-Wl,-z,ibtplt"],
    "no-pie": ["-no-pie", "-Wl,-z,lazy"],
    "shared": ["-shared", "-fPIC", "-Wl,-z,lazy"],
}


@pytest.mark.parametrize("flags", LINKAGES.values(), ids=LINKAGES.keys())
def test_plt_stubs_equal_objdump(flags: list[str], tmp_path: Path) -> None:
    path = tmp_path / "program"
    run("gcc", "-O1", "-fPIC", "-pthread", *flags, TARGETS / "leaky.c", "-o", path)
    labels = set()
    for section in (".plt", ".plt.sec", ".plt.got"):
        listing = outcome("objdump", "-d", "-j", section, path).stdout
        for address, name in re.findall(r"^([0-9a-f]+) <(\S+@plt)>:", listing, re.MULTILINE):
            labels.add((int(address, 16), name))
    assert len(labels) >= 8
    ours = {(address, name) for address, _, name in plt_functions(open_elf(path))}
    # objdump leaves the lazy halves of split stubs unnamed.
    assert labels <= ours
    assert {name for _, name in ours} == {name for _, name in labels}
    assert all(size in (8, 16) for _, size, _ in plt_functions(open_elf(path)))


def stripped(program: Path, directory: Path, *flags: object) -> Path:
    path = directory / "stripped"
    run("strip", "-s", *flags, "-o", path, program)
    return path


def names_of(*files: ElfFile) -> set[tuple[int, str]]:
    table = SymbolTable([table for file in files for table in file.tables()])
    return {(s.address, s.name) for s in map(table._symbol, range(len(table)))}


def test_debug_file_by_build_id(program: Path, tmp_path: Path) -> None:
    elf = open_elf(stripped(program, tmp_path))
    assert elf.build_id in run("readelf", "-n", program)
    assert open_elf(without_section_headers(program, tmp_path / "bare")).build_id == elf.build_id
    troubles: list[str] = []
    assert find_debug(elf, "/opt/leaky", [tmp_path], troubles) is None
    directory = tmp_path / "usr/lib/debug/.build-id" / elf.build_id[:2]
    directory.mkdir(parents=True)
    debug = directory / f"{elf.build_id[2:]}.debug"
    run("objcopy", "--only-keep-debug", program, debug)
    found = find_debug(elf, "/opt/leaky", [tmp_path / "nowhere", tmp_path], troubles)
    assert found.found_by == "build ID"
    assert found.path == f"/usr/lib/debug/.build-id/{elf.build_id[:2]}/{elf.build_id[2:]}.debug"
    assert not troubles
    functions = {(a, n) for a, _, kind, n in nm(program) if kind in "tT"}
    assert functions <= names_of(ElfFile(found.descriptor()))
    # A file that is there under that name, but of another build.
    run("gcc", "-g", "-pthread", "-Wl,--build-id=0x1234", TARGETS / "leaky.c", "-o", debug)
    assert find_debug(elf, "/opt/leaky", [tmp_path], troubles) is None
    assert len(troubles) == 1
    assert "is of another build" in troubles[0]


def test_debug_file_by_link(program: Path, tmp_path: Path) -> None:
    debug = tmp_path / "leaky.debug"
    run("objcopy", "--only-keep-debug", program, debug)
    path = tmp_path / "opt/stripped"
    path.parent.mkdir()
    run("strip", "-s", "-R", ".note.gnu.build-id", "-o", path, program)
    run("objcopy", f"--add-gnu-debuglink={debug}", path)
    elf = open_elf(path)
    assert debug_link(elf)[0] == "leaky.debug"  # type: ignore[index]
    troubles: list[str] = []
    places = ("opt/leaky.debug", "opt/.debug/leaky.debug", "usr/lib/debug/opt/leaky.debug")
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(debug, tmp_path / place)
        found = find_debug(elf, "/opt/stripped", [tmp_path], troubles)
        assert (found.path, found.found_by) == (f"/{place}", "debug link")
        data = bytearray(debug.read_bytes())
        data[-1] ^= 1
        (tmp_path / place).write_bytes(data)
        assert find_debug(elf, "/opt/stripped", [tmp_path], troubles) is None
    assert troubles[-3:] == [f"/{place} is of another build" for place in places]


def test_links_and_pipes_lead_nowhere(program: Path, tmp_path: Path) -> None:
    """What a hostile container puts where debug files are looked for."""
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (root / "absolute").symlink_to("/outside")
    (root / "climbing").symlink_to("../../outside")
    (root / "magic").symlink_to(f"/proc/{os.getpid()}/root{outside}")
    for name in ("absolute", "climbing", "magic"):
        with pytest.raises(OSError, match=r"No such file|Too many"):
            os.close(open_inside(root, f"/{name}"))
    (root / "inside").symlink_to("/real")
    (root / "real").write_text("mine")
    with os.fdopen(open_inside(root, "/inside")) as file:
        assert file.read() == "mine"
    elf = open_elf(stripped(program, tmp_path))
    directory = root / "usr/lib/debug/.build-id" / elf.build_id[:2]
    directory.mkdir(parents=True)
    os.mkfifo(directory / f"{elf.build_id[2:]}.debug")
    assert find_debug(elf, "/opt/leaky", [root], []) is None


def test_embedded_symbols(program: Path, tmp_path: Path) -> None:
    mini = tmp_path / "mini"
    run("objcopy", "-S", "--keep-symbol=main", "--keep-symbol=serve", program, mini)
    packed = tmp_path / "mini.xz"
    packed.write_bytes(lzma.compress(mini.read_bytes()))
    path = stripped(program, tmp_path)
    run("objcopy", f"--add-section=.gnu_debugdata={packed}", path)
    elf = open_elf(path)
    found = embedded_symbols(elf)
    assert {"main", "serve"} <= {name for _, name in names_of(found)}
    main = next(a for a, _, _, n in nm(program) if n == "main")
    assert SymbolTable([*elf.tables(), *found.tables()]).find(main + 3).name == "main"


@pytest.mark.parametrize(
    "content",
    [
        lambda: b"",
        lambda: b"no xz at all",
        lambda: lzma.compress(b"no ELF"),
        lambda: lzma.compress(bytes(300 << 20), preset=0),
    ],
    ids=["empty", "garbage", "other", "bomb"],
)
def test_embedded_garbage(program: Path, tmp_path: Path, content: Callable[[], bytes]) -> None:
    packed = tmp_path / "section"
    packed.write_bytes(content())
    path = stripped(program, tmp_path)
    run("objcopy", f"--add-section=.gnu_debugdata={packed}", path)
    assert embedded_symbols(open_elf(path)) is None


def test_truncated_section_sizes(program: Path, tmp_path: Path) -> None:
    """A section that claims to be larger than the file asks for no more than there is."""
    data = bytearray(program.read_bytes())
    table = int.from_bytes(data[0x28:0x30], "little")
    headers = open_elf(program)._headers
    for name in (".symtab", ".strtab", ".dynsym"):
        section = headers.section(name)
        at = table + headers.sections.index(section) * 64 + 0x20  # sh_size
        assert int.from_bytes(data[at : at + 8], "little") == section.size_bytes
        data[at : at + 8] = (24 << 56).to_bytes(8, "little")
    path = tmp_path / "hostile"
    path.write_bytes(data)
    hostile = open_elf(path)
    main = next(a for a, _, _, n in nm(program) if n == "main")
    assert hostile.symbols.find(main).name == "main"
    assert len(plt_functions(hostile)) >= 8


class FakeProcess:
    """One with a perf map, in a /proc that a test can write to."""

    def __init__(self, directory: Path, pid: int = 77, inner_pid: int = 5) -> None:
        self.process = Process(pid, directory)
        self.map = directory / str(pid) / "root/tmp" / f"perf-{inner_pid}.map"
        self.map.parent.mkdir(parents=True)
        uid = os.getuid()
        (directory / str(pid) / "status").write_text(
            f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\t{inner_pid}\n"
        )
        self.now_s = 0.0
        self.perf_map = PerfMap(self.process, lambda: self.now_s)

    def names(self, *addresses: int) -> list[str | None]:
        self.now_s += 10
        found = self.perf_map.find_all(np.array(addresses, np.uint64))
        return [None if symbol is None else symbol.name for symbol in found]


@pytest.fixture
def fake(tmp_path: Path) -> FakeProcess:
    return FakeProcess(tmp_path)


def test_perf_map(fake: FakeProcess) -> None:
    assert fake.names(0x1000) == [None]
    fake.map.write_text("1000 10 one\n")
    fake.now_s += 0.5  # it is looked at now and then
    assert fake.perf_map.find_all(np.array([0x1000], np.uint64)) == [None]
    assert fake.names(0x1000) == ["one"]
    fake.map.write_text("1000 10 one\n0x2000 20 two words\n\nbroken line\nzz 1 x\n3000 0 none\n40")
    assert fake.names(0xFFF, 0x1000, 0x100F, 0x1010, 0x2001, 0x3000) == [
        None, "one", "one", None, "two words", None,
    ]  # fmt: skip
    with fake.map.open("a") as file:
        file.write("00 8 late\n1000 8 newer\n")
    assert fake.names(0x1000, 0x100A, 0x4000) == ["newer", None, "late"]
    fake.map.write_text("9000 8 again\n")
    assert fake.names(0x1000, 0x9001) == [None, "again"]


def test_perf_maps_that_are_not_believed(fake: FakeProcess) -> None:
    fake.map.write_text("1000 10 one\n")
    fake.map.chmod(0o666)
    assert fake.names(0x1000) == [None]
    assert fake.perf_map.reason == "others may write to it"
    fake.map.chmod(0o644)
    if os.getuid() == 0:
        status = fake.process.directory / "status"
        status.write_text(status.read_text().replace("Uid:\t0\t0", "Uid:\t1000\t1000"))
        fake.perf_map = PerfMap(fake.process, lambda: fake.now_s)
        os.chown(fake.map, 1001, 1001)
        assert fake.names(0x1000) == [None]
        assert fake.perf_map.reason == "it belongs to another user"
        for owner in (1000, 0):
            os.chown(fake.map, owner, owner)
            assert fake.names(0x1000) == ["one"]
    fake.map.unlink()
    os.mkfifo(fake.map)
    assert fake.names(0x1000)[0] in ("one", None)
    assert fake.perf_map.reason == "it is not a regular file"


def test_perf_maps_that_are_too_large(fake: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many functions are read and no more, which is said; what was read holds."""
    monkeypatch.setattr(modulesymbols, "_MOST_FUNCTIONS", 100)
    fake.map.write_text("".join([f"{0x1000 + 16 * n:x} 10 name{n}\n" for n in range(300)]))
    assert fake.names(0x1000, 0x1000 + 16 * 299) == ["name0", None]
    assert fake.perf_map.reason == "only its first 101 functions are read"
    with fake.map.open("a") as file:
        file.write("9000 8 late\n")
    assert fake.names(0x1000, 0x9000) == ["name0", None]
    assert len(fake.perf_map) == 101
    fake.map.write_text("9000 8 again\n")
    assert fake.names(0x1000, 0x9001) == [None, "again"]
    assert fake.perf_map.reason is None
    monkeypatch.setattr(modulesymbols, "_PIECE_BYTES", 64)
    fake.map.write_text("")
    assert fake.names(0x9001) == [None]
    fake.map.write_text("1000 10 one\n" + "x" * 200 + "\n2000 10 two\n")
    assert fake.names(0x1000, 0x2000) == ["one", None]
    assert fake.perf_map.reason == "it has endless lines"


def test_names_of_generated_code_and_source_directories() -> None:
    assert describe("JS:*tick /srv/a b.js:12:7") == ("tick", "/srv/a b.js", 12)
    assert describe("JS:^ node:internal/timers:524:25") == (
        "(anonymous)", "node:internal/timers", 524,
    )  # fmt: skip
    assert describe("LazyCompile:~go file.js:1:1") == ("go", "file.js", 1)
    assert describe("py::<module>:/srv/app.py") == ("<module>", "/srv/app.py", None)
    assert describe("Builtin:ArrayPush") == ("Builtin:ArrayPush", None, None)
    assert describe("JS:*x y:99999999999999999999:1")[2] == 999999999
    sources = SourceMap([("/build/src", "/home/me/src/"), ("/build/src/gen/", "/tmp/gen")])
    assert sources.apply("/build/src/a.c") == "/home/me/src/a.c"
    assert sources.apply("/build/src/gen/b.c") == "/tmp/gen/b.c"
    assert sources.apply("/build/srcs/a.c") == "/build/srcs/a.c"
    assert sources.apply("a.c") == "a.c"
    assert sources.apply(None) is None


def test_package_hints(tmp_path: Path) -> None:
    lists = tmp_path / "var/lib/dpkg/info"
    lists.mkdir(parents=True)
    (lists / "libc6:amd64.list").write_text("/.\n/lib\n/lib/x86_64-linux-gnu/libc.so.6\n")
    (lists / "redis-tools.list").write_text("/usr/bin/redis-check-rdb\n")
    (lists / "redis-tools.md5sums").write_text("/usr/bin/other\n")
    libc, redis = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/redis-check-rdb"
    hints = debug_hints(tmp_path, [libc, redis, "/opt/own", "/usr/bin/other"])
    assert hints == {
        libc: "apt install libc6-dbg",
        redis: "apt install redis-tools-dbgsym, from the distribution's archive of debug symbols",
    }
    # A program is named by a link; the debug information is that of the file.
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/redis-check-rdb").touch()
    (tmp_path / "usr/bin/redis-server").symlink_to("redis-check-rdb")
    (lists / "redis-server.list").write_text("/usr/bin/redis-server\n")
    assert debug_hints(tmp_path, ["/usr/bin/redis-server"]) == {
        "/usr/bin/redis-server": hints[redis]
    }
    (tmp_path / "rpm/var/lib/rpm").mkdir(parents=True)
    assert debug_hints(tmp_path / "rpm", ["/usr/lib64/libc.so.6", "/opt/own"]) == {
        "/usr/lib64/libc.so.6": 'dnf debuginfo-install "$(rpm -qf /usr/lib64/libc.so.6)"'
    }
    assert debug_hints(tmp_path / "nothing", ["/usr/bin/x"]) == {}
