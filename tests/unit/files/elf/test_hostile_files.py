"""Files that promise too much, point anywhere, or are no files at all: bounded work, no harm."""

import lzma
import os
import resource
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.hostile import (
    MadeSection,
    elf_bytes,
    open_bytes,
    open_sparse,
    symbol,
    symbol_sections,
)
from tests.unit.references import find_debug
from tracelloc.files.elf import ElfFile, NotElfError
from tracelloc.files.elf.debugfiles import embedded_symbols
from tracelloc.files.elf.plt import plt_functions
from tracelloc.files.machinecode.codepaths import CodeReader
from tracelloc.model.codefiles import Mapping
from tracelloc.record.mallocs.discovery import families_in
from tracelloc.record.mallocs.families import Family
from tracelloc.record.process.procfs import Process
from tracelloc.record.worker.targetfile import TargetFile
from tracelloc.system.debugpackages import debug_hints
from tracelloc.system.memorylimits import closest_limit
from tracelloc.system.syscalls import NotRegularError, open_inside, open_regular
from tracelloc.ui.frames import read_source

MIB = 1 << 20


@contextmanager
def bounded(cpu_s: float = 5.0, memory_bytes: int = 512 * MIB) -> Iterator[None]:
    """Fails where more CPU time is used, or more memory is taken than before at most."""
    before, cpu = resource.getrlimit(resource.RLIMIT_AS), time.thread_time()
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.thread_time() - cpu < cpu_s


def families_of(elf: ElfFile) -> list[Family]:
    """The malloc libraries in a file that a worker reads."""
    return list(families_in(TargetFile(os.dup(elf.descriptor()), "/file")))


@pytest.mark.parametrize("info", [1 << 32 - 1, (1 << 32) - 1, 1 << 20])
def test_counts_that_are_kept_in_the_first_section(info: int) -> None:
    with bounded(), pytest.raises(NotElfError, match=r"headers|cut short"):
        open_bytes(elf_bytes(program_count=0xFFFF, first=(0, 0, info)))


def test_names_and_headers_that_claim_too_much() -> None:
    elf = open_bytes(elf_bytes(section_count=0, first=(1 << 40, 1, 0)))
    with bounded():
        assert elf.section_bytes(".text") is None
        assert families_of(elf) == []
        assert elf.build_id is None
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, 64, 64, 4096)
    assert len(open_bytes(elf_bytes(programs=load * 256)).segments) == 256
    with pytest.raises(NotElfError, match="segments"):
        open_bytes(elf_bytes(programs=load * 257))
    # 65,000 names that are all the rest of the file would be sixteen gigabytes.
    sections = [MadeSection("", name_at=number) for number in range(65_000)]
    elf = open_bytes(elf_bytes([*sections, MadeSection("A" * (16 * MIB))]))
    with bounded():
        assert elf.section_bytes(".text") is None
    # Names that end as jemalloc's do, each of which was looked for in all the others.
    names = [f"a{number}_mallocx" for number in range(200_000)]
    elf = open_bytes(elf_bytes(symbol_sections([*names, "malloc", "je_mallocx"])))
    with bounded():
        found = [family.name for family in families_of(elf)]
    assert found[0] == "malloc"
    assert set(found[1:]) == {"jemalloc"}
    assert len(found) == 9
    strings = b"\0" + b"n" * (1 << 20)
    symbols = b"".join(symbol(1 + number) for number in range(100_000))
    elf = open_bytes(elf_bytes([MadeSection(".dynsym", symbols, kind=11, link=2),
                                MadeSection(".dynstr", strings, kind=3)]))  # fmt: skip
    with bounded():
        assert len(elf.symbols.find(0x1008).name) <= 64 << 10
    entries = struct.pack("<QQ", 1, 1) * 4096
    elf = open_bytes(elf_bytes([MadeSection(".dynamic", entries),
                                MadeSection(".dynstr", b"\0" + b"n" * (16 * MIB))]))  # fmt: skip
    with bounded():
        assert {len(name) for name in elf.dynamic_names.needed} == {4096}


@pytest.mark.parametrize("name", [".dynsym", ".dynstr", ".gnu_debugdata", ".note.gnu.build-id",
                                  ".rela.dyn", ".plt", ".dynamic", ".gnu_debuglink"])  # fmt: skip
def test_sparse_sections(tmp_path: Path, name: str) -> None:
    size = 1 << 34
    sections = symbol_sections(["malloc", "free"])
    sections += [MadeSection(".gnu_debugdata", b"x"), MadeSection(".note.gnu.build-id", b"x"),
                 MadeSection(".rela.dyn", b"x"), MadeSection(".plt", b"x"),
                 MadeSection(".dynamic", b"x"), MadeSection(".gnu_debuglink", b"x")]  # fmt: skip
    claims = [s._replace(claims=size) if s.name == name else s for s in sections]
    elf = open_sparse(tmp_path / "file", elf_bytes(claims), size + (1 << 20))
    with bounded():
        found = {family.name for family in families_of(elf)}
        assert found == (set() if name in (".dynsym", ".dynstr") else {"malloc"})
        assert embedded_symbols(elf) is None
        assert elf.build_id is None
        assert elf.dynamic_names.needed == ()
        assert find_debug(elf, "/file", [tmp_path], []) is None
        plt_functions(elf)
        len(elf.symbols)
    if name in (".dynsym", ".dynstr", ".gnu_debugdata"):
        assert any("is not read" in trouble for trouble in elf.troubles)


def test_what_swells_or_leads_on() -> None:
    """53 KB of zeros, packed, are 256 MiB."""
    swollen = lzma.compress(elf_bytes() + bytes(200 * MIB), format=lzma.FORMAT_XZ, preset=0)
    elf = open_bytes(elf_bytes([MadeSection(".gnu_debugdata", swollen)]))
    with bounded(memory_bytes=192 * MIB):
        assert embedded_symbols(elf) is None
    honest = lzma.compress(elf_bytes(symbol_sections(["f"])), format=lzma.FORMAT_XZ)
    found = embedded_symbols(open_bytes(elf_bytes([MadeSection(".gnu_debugdata", honest)])))
    assert list(found.find_functions(["f"])) == ["f"]
    # Each function is followed so far; all of a file together, too.
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 30, 1 << 30, 4096)
    elf = open_bytes(elf_bytes([MadeSection(".text", b"\x90" * MIB)], programs=load))
    with bounded(60.0):
        reader = CodeReader(elf)
        troubles = {reader.exits(4096 + 10_000 * number).trouble for number in range(100)}
    assert troubles == {"it is too long to follow"}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """Opening a device has effects, opening a pipe waits."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/tty")
    for path in (pipe, link, Path("/dev/zero")):
        with pytest.raises(NotRegularError):
            open_regular(path)
    opened = threading.Thread(target=open_pipe, args=(tmp_path,))
    opened.start()
    opened.join(10)
    assert not opened.is_alive()
    (tmp_path / "file").write_text("text")
    for descriptor in (open_regular(tmp_path / "file"), open_inside(tmp_path, "/file")):
        assert os.read(descriptor, 9) == b"text"
        os.close(descriptor)


def open_pipe(directory: Path) -> None:
    with pytest.raises(NotRegularError):
        open_inside(directory, "/pipe")


def test_a_debug_link_to_a_device(tmp_path: Path) -> None:
    link = b"debug\0\0\0" + struct.pack("<I", 0)
    elf = open_bytes(elf_bytes([MadeSection(".gnu_debuglink", link)]))
    (tmp_path / "debug").symlink_to("/dev/zero")
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/zero")
    with bounded():
        assert find_debug(elf, "/file", [tmp_path], []) is None


def test_a_mapping_that_is_a_pipe_by_now(tmp_path: Path) -> None:
    """Where map_files may not be used, the path serves; and whoever owns it changes it."""
    directory = tmp_path / "7"
    (directory / "root").mkdir(parents=True)
    os.mkfifo(directory / "root/lib.so")
    (directory / "exe").symlink_to("/lib.so")
    (directory / "map_files").symlink_to("/nonexistent")
    mapping = Mapping(0x1000, 0x2000, 0, True, "00:01", 5, "/lib.so", False)
    process = Process(7, tmp_path)
    with pytest.raises(FileNotFoundError):
        process.open_mapping(mapping)
    with pytest.raises(NotRegularError):
        open_inside(process.memory_directory / "root", mapping.path)


def test_package_lists_of_a_container_are_its_own(tmp_path: Path) -> None:
    """Its directory of lists is a link to ours, or has pipes in it."""
    root = tmp_path / "root"
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/info").symlink_to("/outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.list").write_text("/usr/lib/x.so\n")
    assert debug_hints(root, ["/usr/lib/x.so"]) == {}
    (root / "outside").mkdir()
    os.mkfifo(root / "outside/a.list")
    (root / "outside/b:amd64.list").write_text("/usr/lib/x.so\n")
    assert "b-dbgsym" in debug_hints(root, ["/usr/lib/x.so"])["/usr/lib/x.so"]


def test_names_of_groups_make_no_lines(tmp_path: Path) -> None:
    """A control group may be called whatever ends a line somewhere else."""
    group = tmp_path / "groups/a\x0b0::\u2028b"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("4096\n")
    (group / "memory.current").write_text("1024\n")
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "cgroup").write_text("0::/a\x0b0::\u2028b\n")
    limit = closest_limit(tmp_path / "7", tmp_path / "groups")
    assert (limit.what, limit.size_bytes, limit.free_bytes) == ("cgroup", 4096, 3072)


def test_sources_are_regular_files_within_the_root_of_the_process(tmp_path: Path) -> None:
    source, pipe = tmp_path / "main.c", tmp_path / "pipe"
    source.write_bytes(b"int main;\n\xff\n")
    os.mkfifo(pipe)
    assert read_source(os.getpid(), str(source)) == ["int main;", "\ufffd"]
    for path in (pipe, tmp_path, tmp_path / "nowhere"):
        assert isinstance(read_source(os.getpid(), str(path)), OSError)
