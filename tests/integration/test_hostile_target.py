"""One target that does all of it: bounded time and memory, and no escape reaches an output."""

import functools
import http.client
import lzma
import os
import re
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, TARGETS, Target, measured_command, read_line, split_measured
from tests.unit.files.elf.test_hostile_files import SPLIT
from tests.unit.hostile import MadeSection, elf_bytes, symbol, symbol_sections
from tracelloc.record.process.processlist import ProcessScan
from tracelloc.ui.picker import process_rows
from tracelloc.ui.tableview import clean

pytestmark = [pytest.mark.bpf, pytest.mark.long]

MOST_BYTES = 1 << 30
LOAD = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, 1 << 20, 1 << 20, 4096)
ODD_NAME = "lib\x1b[2J\x0b7000-8000 r-xp 00000000 00:01 5 \u2028\x85\x1c.so"


@functools.cache
def hostile_files() -> dict[str, tuple[bytes, int]]:
    """Content, and the size to which a hole extends it."""
    many = symbol_sections([f"a{number}_mallocx" for number in range(200_000)])
    sparse = symbol_sections(["malloc", "free"])
    endless = [MadeSection(".dynsym", b"".join(symbol(1 + n) for n in range(50_000)), 11, 2),
               MadeSection(".dynstr", b"\0" + b"n" * (1 << 20), 3)]  # fmt: skip
    bomb = lzma.compress(bytes(300 << 20), format=lzma.FORMAT_XZ, preset=0)
    link = b"../../dev/zero\0\0" + struct.pack("<I", 0)
    headers = {"phnum": elf_bytes(program_count=0xFFFF, first=(0, 0, (1 << 32) - 1)),
               "shnum": elf_bytes(section_count=0, first=(1 << 40, 1, 0))}  # fmt: skip
    made = {
        ODD_NAME: elf_bytes(symbol_sections(["malloc", "free", "calloc\x1b[31m"]), programs=LOAD),
        "many.so": elf_bytes(many, programs=LOAD),
        "endless.so": elf_bytes(endless, programs=LOAD),
        "bomb.so": elf_bytes([MadeSection(".gnu_debugdata", bomb)], programs=LOAD),
        "link.so": elf_bytes([MadeSection(".gnu_debuglink", link)], programs=LOAD),
        "replaced.so": elf_bytes(programs=LOAD),
        "operators.so": elf_bytes(symbol_sections(["_Znwm", "_ZdlPv"]), programs=LOAD),
        "garbage.so": os.urandom(1 << 16),
        **headers,
    }
    found = {name: (data, len(data)) for name, data in made.items()}
    for number in (0, 1):
        claims = [s._replace(claims=1 << 34) if n == number else s for n, s in enumerate(sparse)]
        found[f"sparse{number}.so"] = elf_bytes(claims, programs=LOAD), (1 << 34) + (1 << 20)
    return found


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    directory = tmp_path / "files"
    directory.mkdir()
    for name, (data, size_bytes) in hostile_files().items():
        (directory / name).write_bytes(data)
        os.truncate(directory / name, max(size_bytes, 8192))
    source = tmp_path / "split.s"
    source.write_text(SPLIT.format(directory="d" * 5000, name="split.dwo"))
    command = ["gcc", "-nostdlib", "-static", "-o", directory / "split", source]
    subprocess.run(command, check=True)
    target = Target(["/usr/bin/python3", TARGETS / "hostile.py", directory, "\x1b]0;y\x07\x0b"])
    yield target
    pid = target.pid
    target.kill()
    Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True)


class Bounded:
    """A tracelloc whose memory is measured, and whose time is bounded by that of the harness."""

    def __init__(self, directory: Path, *arguments: str | int | Path) -> None:
        self._out = (directory / "out").open("w+b")
        self.process = subprocess.Popen(
            measured_command(*arguments), stdin=subprocess.DEVNULL, stdout=self._out,
            stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self.said = ""

    def wait_for(self, words: str) -> str:
        while words not in (line := read_line(self.process.stderr, "tracelloc")):
            self.said += f"{line}\n"
        self.said += f"{line}\n"
        return line

    def finish(self) -> int:
        self.said += (self.process.stderr.read() or b"").decode()
        self.said, rss_bytes, _ = split_measured(self.said)
        assert rss_bytes < MOST_BYTES
        self._out.seek(0)
        for text in (self._out.read().decode(), self.said):
            assert_harmless(text)
        return self.process.wait()


def assert_harmless(text: str) -> None:
    assert {c for c in text if not (c.isprintable() or c == "\n")} == set()


@pytest.mark.parametrize("options", [(), ("--json", "--show", "all"), ("--follow",)], ids=str)
def test_tracing(target: Target, tmp_path: Path, options: tuple[str, ...]) -> None:
    files = [tmp_path / f"a.{suffix}" for suffix in ("html", "json", "folded", "svg", "pb.gz")]
    outputs = [word for path in files for word in ("-o", path)]
    mode = options if "--json" in options else ("--text", *options)
    run = Bounded(
        tmp_path, "-p", target.pid, *mode, "--top", 20, "--interval", "2s", "--count", 2,
        "--listen", 0, *outputs,
    )  # fmt: skip
    port = int(re.findall(r":(\d+)/", run.wait_for("listening on"))[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    assert_harmless(connection.getresponse().read().decode())
    connection.close()
    assert run.finish() == 0, run.said
    for path in files[:4]:
        assert_harmless(path.read_text().replace("\t", " "))
    assert target.process.poll() is None


def test_symbols_and_doctor(target: Target, tmp_path: Path) -> None:
    run = Bounded(tmp_path, "symbols", "-p", target.pid)
    assert run.finish() == 0, run.said
    text = (tmp_path / "out").read_text()
    for words in ("is not read", r"\x1b[2J\x0b7000-8000"):
        assert words in text, text
    run = Bounded(tmp_path, "doctor", "-p", target.pid)
    assert run.finish() == 0, run.said


def test_picker(target: Target) -> None:
    """Its line is there, and so are all others."""
    scan = ProcessScan()
    other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE_S
    known: set[int] = set()
    while not {target.pid, other.pid} <= known:
        assert time.monotonic() < deadline
        infos = scan.refresh(10)
        known = {info.pid for info in infos if info.known}
    rows = process_rows(infos, searching=False)
    assert {target.pid, other.pid} <= set(rows.order)
    for column in ("command", "user", "state"):
        assert_harmless(clean(str(rows.cells(target.pid, column))))
    other.kill()
    other.communicate()
