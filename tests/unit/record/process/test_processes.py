"""The list of processes: on a made-up /proc, and on the real one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import background
from tests.harness import read_line, wait_until
from tracelloc.model.codefiles import Mapping
from tracelloc.model.process import ProcessInfo, Trouble, matching_processes
from tracelloc.record.process.identity import script_of
from tracelloc.record.process.processlist import ProcessScan, parse_stat
from tracelloc.record.process.procfs import Process
from tracelloc.record.worker.client import FileReadError
from tracelloc.text import NS_PER_S

PAGE = os.sysconf("SC_PAGE_SIZE")


def stat_line(pid: int, command: str, *, state: str = "S", flags: int = 0, start: int = 1,
              pages: int = 1) -> str:  # fmt: skip
    fields = ["0"] * 50
    fields[0], fields[6], fields[19], fields[21] = state, str(flags), str(start), str(pages)
    return f"{pid} ({command}) {' '.join(fields)}\n"


def put(
    root: Path, pid: int, line: str, arguments: bytes = b"", head: bytes = b"\x7fELF\x02"
) -> None:
    directory = root / str(pid)
    directory.mkdir(exist_ok=True)
    (directory / "stat").write_text(line)
    (directory / "cmdline").write_bytes(arguments)
    (directory / "exe").write_bytes(head)
    (directory / "maps").write_text("")


class MadeUp(ProcessScan):
    """A scan of a made-up /proc, by a clock of the test's."""

    def __init__(self, root: Path, **more: Any) -> None:
        super().__init__(root, clock_ns=lambda: self.now_ns, **more)
        self.now_ns = 0


def test_names_and_matching() -> None:
    stat = parse_stat(stat_line(7, "a) R (b", state="Z", flags=5, start=99, pages=3))
    assert (stat.command, stat.state, stat.flags) == ("a) R (b", "Z", 5)
    assert (stat.start, stat.rss_bytes) == (99, 3 * PAGE)
    assert parse_stat("") is parse_stat("7 (x) S 1 2") is parse_stat(")(") is None
    code = "import threading, ctypes; ctypes.CDLL(None).prctl(15, b'a [b]\\x1b', 0, 0, 0); input()"
    target = subprocess.Popen([sys.executable, "-c", code + "; input()"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: Process(target.pid).thread_names() == {target.pid: "a [b]\x1b"})
    finally:
        target.communicate(b"\n\n")
    assert Process(target.pid).thread_names() == {}

    def info(pid: int, command: str, trouble: Trouble | None = None) -> ProcessInfo:
        return ProcessInfo(pid, command, f"/opt/{command} -x", "www", 1, 0, "malloc in libc.so.6",
                           trouble, True)  # fmt: skip

    infos = [info(10, "api"), info(11, "Node"), info(12, "node", Trouble.BITS)]
    assert matching_processes(infos, "") == infos
    assert [i.pid for i in matching_processes(infos, "node")] == [11, 12]
    assert [i.pid for i in matching_processes(infos, " NODE 32-bit ")] == [12]
    assert [i.pid for i in matching_processes(infos, "10 www")] == [10]
    assert matching_processes(infos, "[") == []


def test_what_is_said_of_each(tmp_path: Path) -> None:
    put(tmp_path, 5, stat_line(5, "kthreadd", flags=0x00200000))
    put(tmp_path, 6, stat_line(6, "zombie", state="Z"))
    put(tmp_path, 7, stat_line(7, "old", pages=2), b"/opt/old\0-x\0", b"\x7fELF\x01")
    put(tmp_path, 8, stat_line(8, "us"), b"")
    put(tmp_path, 9, stat_line(9, "go", pages=9), b"\xff\xfe\0")
    (tmp_path / "notaprocess").mkdir()
    (tmp_path / "10").mkdir()
    scan = MadeUp(tmp_path, own_pid=8)
    found = {info.pid: info for info in scan.refresh()}
    assert {pid: info.trouble for pid, info in found.items()} == {
        6: Trouble.ENDED, 7: Trouble.BITS, 8: Trouble.SELF, 9: Trouble.NO_ALLOCATOR
    }  # fmt: skip
    assert found[7].arguments == "/opt/old -x"
    assert found[8].arguments == "us"
    assert found[9].arguments == "\ufffd\ufffd"
    assert found[9].rss_bytes == 9 * PAGE
    assert all(info.known for info in found.values())


def test_an_odd_process_ends_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(_process: Process) -> object:
        raise ValueError("what nobody has thought of")

    monkeypatch.setattr(Process, "maps", odd)
    put(tmp_path, 9, stat_line(9, "a)\x0b\x85\u2028 Z 1 (b", pages=9), b"\x0b\xc2\x85\0")
    (info,) = MadeUp(tmp_path).refresh()
    assert (info.pid, info.trouble, info.known) == (9, Trouble.ODD, True)
    assert info.command == "a)\x0b\x85\u2028 Z 1 (b"


def test_growth_over_the_last_minute(tmp_path: Path) -> None:
    scan = MadeUp(tmp_path)
    for second in range(200):
        scan.now_ns = second * NS_PER_S
        pages = 100 if second < 100 else 100 + 2 * (second - 100)
        put(tmp_path, 3, stat_line(3, "grows", pages=pages))
        put(tmp_path, 4, stat_line(4, "large", pages=5000))
        infos = scan.refresh()
        assert [info.pid for info in infos] == ([4, 3] if second <= 100 else [3, 4])
    assert infos[0].growth_bytes_per_min == pytest.approx(120 * PAGE, rel=0.01)
    assert infos[1].growth_bytes_per_min == 0
    # Another process of the same number starts from nothing.
    put(tmp_path, 3, stat_line(3, "other", start=2, pages=9000))
    again = {info.pid: info for info in scan.refresh()}
    assert (again[3].growth_bytes_per_min, again[3].command) == (0, "other")


def growth(root: Path, pages: dict[int, int]) -> list[float]:
    """In pages a minute, at looks at these seconds, of a process that has so many pages then."""
    scan, found = MadeUp(root), []
    for second, count in pages.items():
        scan.now_ns = second * NS_PER_S
        put(root, 3, stat_line(3, "new", pages=count))
        found += [info.growth_bytes_per_min / PAGE for info in scan.refresh()]
    return found


def test_growth_at_first_and_however_rarely_it_is_looked_at(tmp_path: Path) -> None:
    """That of the first seconds is taken for that of five."""
    found = growth(tmp_path, {second: 100 if second == 0 else 700 for second in range(11)})
    assert found[:7] == [0, *[7200] * 5, 6000]
    assert found[10] == 3600
    rarely = growth(tmp_path, {second: 100 + min(second, 300) for second in range(0, 401, 20)})
    assert (rarely[16], rarely[-1]) == (40, 0)


def test_budget_and_looking_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def inspect(self: MadeUp, pid: int, stat: object) -> tuple[str | None, Trouble | None]:
        looked.append(pid)
        self.now_ns += NS_PER_S
        return ("malloc in a", None) if pid == 2 else (None, Trouble.NO_ALLOCATOR)

    monkeypatch.setattr(ProcessScan, "_inspect", inspect)
    for pid in (1, 2, 3):
        put(tmp_path, pid, stat_line(pid, "p", pages=pid))
    scan = MadeUp(tmp_path)
    known = [sorted(i.pid for i in scan.refresh(0.1) if i.known) for _ in range(3)]
    assert known == [[3], [2, 3], [1, 2, 3]]
    assert looked == [3, 2, 1], "the largest first"
    scan.refresh()
    assert looked == [3, 2, 1], "known for now"
    scan.now_ns += 100 * NS_PER_S
    scan.refresh(10)
    assert looked == [3, 2, 1, 3, 1], "the one with an allocator keeps it"


def test_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that links the C library is traceable; files are read once for all.

    A process that ends while it is inspected has no mappings that could be opened, which says
    nothing of the files of others.
    """

    def open_mapping(_process: Process, _mapping: Mapping) -> int:
        raise FileNotFoundError

    scan = ProcessScan()
    with monkeypatch.context() as patch:
        patch.setattr(Process, "open_mapping", open_mapping)
        assert {info.allocator for info in scan.refresh(60.0)} == {None}
    with background("/bin/cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as target:
        target.stdin.write(b"\n")
        assert read_line(target.stdout, "cat") == ""
        (mine,) = wait_until(lambda: [i for i in scan.refresh() if i.pid == target.pid and i.known])
        assert (mine.allocator, mine.trouble) == ("malloc in libc.so.6", None)
        assert (mine.command, mine.arguments) == ("cat", "/bin/cat")
        us = next(info for info in scan.refresh(30) if info.pid == os.getpid())
        assert us.trouble is Trouble.SELF
        assert us.rss_bytes > 10 << 20
        opened, known = scan._families_in, set(scan._files)

        def look_into(process: Process, mapping: Mapping) -> str | FileReadError | None:
            # Somebody may have started another program meanwhile.
            assert mapping.file_id not in known
            return opened(process, mapping)

        monkeypatch.setattr(scan, "_families_in", look_into)
        scan._seen.clear()
        again = {info.pid: info for info in scan.refresh(30)}
        assert again[target.pid].allocator == "malloc in libc.so.6"


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python3 app.py", "app.py"),
        ("/usr/bin/python3.11 -X perf -u /srv/app.py --port 80", "/srv/app.py"),
        ("python3 -m http.server 8000", "http.server"), ("python3 -c pass app.py", None),
        ("python3", None), ("node --require ./hook.js server.js", "server.js"), ("-bash", None),
        ("sh ./run.sh", "./run.sh"), ("redis-server /etc/redis.conf", None), ("", None),
    ],
)  # fmt: skip
def test_scripts_of_interpreters(command: str, script: str | None) -> None:
    assert script_of(command.split()) == script
