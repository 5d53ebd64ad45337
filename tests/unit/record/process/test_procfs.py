"""Parsing /proc, on recorded text and on ourselves; who a process is, and where its code is."""

import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import background
from tracelloc.architecture import native
from tracelloc.errors import TargetError
from tracelloc.model.codefiles import Mapping
from tracelloc.model.process import Target
from tracelloc.record.process.codehistory import CodeHistory, as_stored
from tracelloc.record.process.identity import forked_target, renamed_target, target_of
from tracelloc.record.process.procfs import AddressMap, Process, parse_maps

MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 12345    /opt/my app/bin (deleted)/api
55d0c0a01000-55d0c0a05000 r-xp 00001000 fe:00 12345    /opt/my app/bin (deleted)/api
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0        [heap]
7f0000000000-7f0000001000 r-xp 00000000 00:00 0
7f0000002000-7f0000004000 r-xp 00002000 103:02 99      /usr/lib/libfoo.so.1 (deleted)
7f0000005000-7f0000006000 r-xp 00000000 00:01 77       /memfd:jit (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0        [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""


def test_maps() -> None:
    maps = list(parse_maps(MAPS).values())
    assert len(maps) == 8
    code = maps[1]
    assert (code.start, code.end, code.offset) == (0x55D0C0A01000, 0x55D0C0A05000, 0x1000)
    assert code.path == "/opt/my app/bin (deleted)/api"
    assert (code.executable, code.is_file, code.deleted) == (True, True, False)
    assert code.file_id == ("fe:00", 12345)
    assert code.map_file == "55d0c0a01000-55d0c0a05000"
    assert (maps[2].is_file, maps[2].executable, maps[2].path) == (False, False, "[heap]")
    assert (maps[3].is_file, maps[3].path) == (False, "")
    assert (maps[4].path, maps[4].deleted) == ("/usr/lib/libfoo.so.1", True)
    assert maps[5].is_file
    assert parse_maps("") == {}
    assert list(parse_maps(MAPS, parse_maps(MAPS)).values()) == maps
    # The kernel escapes line feeds only; a name may hold whatever else ends a line somewhere.
    hostile = "/tmp/a\x0b1000-2000 r-xp 00000000 00:01 5 /lib/libc.so.6\u2028b"
    (mapping,) = parse_maps(f"7000-8000 r--p 00000000 00:01 4 {hostile}\n").values()
    assert (mapping.start, mapping.path) == (0x7000, hostile)
    maps = AddressMap(parse_maps(MAPS).values())
    assert maps.find(0x55D0C0A01000).offset == 0x1000
    assert maps.find(0x55D0C0A04FFF).offset == 0x1000
    assert maps.find(0x55D0C0A05000) is None
    assert maps.find(0) is None
    assert maps.find(0xFFFFFFFFFF600000).path == "[vsyscall]"


def fake_process(root: Path, stat: str) -> Process:
    directory = root / "42"
    directory.mkdir()
    (directory / "stat").write_text(stat)
    return Process(42, root)


def test_ourselves_children_and_ends(tmp_path: Path) -> None:
    """The command may hold blanks and parentheses."""
    fields = ["S", "1", "42", "42", "0", "-1", "2097216", *["0"] * 12, "777", *["0"] * 30]
    process = fake_process(tmp_path, f"42 (a) R (b) {' '.join(fields)}\n")
    assert process.state() == "S"
    assert process.is_kernel_thread()
    process = Process(os.getpid())
    assert process.exists()
    assert not process.is_kernel_thread()
    assert process.state() in "RS"
    assert threading.get_native_id() in process.thread_ids()
    assert process.rss_bytes() > 1_000_000
    mapping = next(m for m in process.maps().mappings if "libc.so" in m.path)
    descriptor = process.open_mapping(mapping)
    assert os.fstat(descriptor).st_ino == mapping.inode
    os.close(descriptor)
    nobody = Process(4242, tmp_path)
    assert (nobody.exists(), nobody.rss_bytes(), nobody.thread_ids()) == (False, None, set())
    with pytest.raises(TargetError, match="there is no process 4242"):
        nobody.maps()


@pytest.mark.parametrize(
    ("file", "link", "shown"),
    [
        ("check-rdb", "server", "server"),
        ("python3.11", "python3", "python3.11"),
        ("server", "server", "server"),
        ("file", "two\nlines", "file"),
    ],
)
def test_a_program_has_the_name_of_the_link_by_which_it_was_started(
    tmp_path: Path, file: str, link: str, shown: str
) -> None:
    shutil.copy("/bin/sleep", tmp_path / file)
    if link != file:
        (tmp_path / link).symlink_to(file)
    with background(tmp_path / link, "60", stdin=subprocess.DEVNULL) as started:
        process = Process(started.pid)
        while "libc.so" not in process.maps_text():  # the kernel is still executing it
            pass
        assert process.executable() == str(tmp_path / shown)
        (path,) = {each.path for each in process.maps().mappings if str(tmp_path) in each.path}
        assert path == process.executable()
        # Once there is no such link, only the file is left to be named.
        (tmp_path / link).unlink()
        if link != file:
            assert process.executable() == str(tmp_path / file)


def test_main_thread_that_has_ended(tmp_path: Path) -> None:
    """What /proc shows then: nothing for it but its numbers, everything for the others."""
    process = fake_process(tmp_path, "42 (main) Z 1 42\n")
    for thread_id in (42, 43, 44, 45):
        (tmp_path / f"42/task/{thread_id}").mkdir(parents=True)
    (tmp_path / "42/maps").touch()
    assert (process.exists(), process.thread_id) == (False, 42)
    for thread_id in (45, 44):
        (tmp_path / f"42/task/{thread_id}/exe").symlink_to("/bin/gone (deleted)")
        (tmp_path / str(thread_id)).mkdir()
        (tmp_path / f"{thread_id}/exe").symlink_to("/bin/gone (deleted)")
        (tmp_path / f"{thread_id}/maps").write_text(MAPS)
        (tmp_path / f"{thread_id}/cmdline").write_bytes(b"gone\0-x\0")
        (tmp_path / f"{thread_id}/statm").write_text(f"9 {thread_id}")
    assert (process.exists(), process.thread_id) == (True, 44)
    assert [process.is_running(thread_id) for thread_id in range(42, 47)] == [
        False, False, True, True, False
    ]  # fmt: skip
    assert process.executable() == "/bin/gone"
    assert process.arguments() == ["gone", "-x"]
    assert len(process.maps().mappings) == 8
    assert process.rss_bytes() == 44 * os.sysconf("SC_PAGE_SIZE")


ID = "3f" * 32
POD = "0e7a1c52-9d3b-4f7e-8a61-2b9f0c4d5e6f"


@pytest.mark.parametrize(
    ("text", "expected", "pod"),
    [
        ("0::/\n", "", ""),
        (f"0::/system.slice/docker-{ID}.scope\n", ID, ""),
        (f"0::/kubepods/besteffort/pod{POD}/{ID}\n", ID, POD),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-{ID}.scope\n", ID, POD),
        (f"0::/kubepods/pod{POD}0/{ID}\n", ID, ""),
        (f"4:memory:/docker/{'e' * 64}/docker/{ID}\n0::/\n", ID, ""),
        (f"0::/x{ID}0\n", "", ""),
        ("\x1b\udcff", "", ""),
        (None, "", ""),
    ],
)
def test_targets(text: str | None, expected: str, pod: str, tmp_path: Path) -> None:
    directory = tmp_path / "42"
    (directory / "task/42").mkdir(parents=True)
    (directory / "comm").write_text("server\n")
    (directory / "exe").symlink_to("/opt/shop/bin/server (deleted)")
    if text is not None:
        (directory / "cgroup").write_bytes(text.encode(errors="surrogateescape"))
    target = target_of(Process(42, tmp_path), 3, 5)
    assert (target.pid, target.command, target.parent_pid) == (42, "server", 0)
    assert (target.exec_count, target.number) == (3, 5)
    assert target.executable == "/opt/shop/bin/server"
    assert (target.container_id, target.pod_uid) == (expected, pod)
    assert (target.host, target.machine) == (os.uname().nodename, native().short_name)


def test_a_child_and_what_it_executes(tmp_path: Path) -> None:
    """A child is in its parent's program until it executes another one."""
    parent = Target(41, "server", 1, 2, 5, executable="/opt/server", container_id=ID, host="box")
    directory = tmp_path / "42"
    (directory / "task/42").mkdir(parents=True)
    (directory / "comm").write_text("worker\n")
    (directory / "status").write_text("PPid:\t40\n")
    (directory / "exe").symlink_to("/opt/worker")
    process = Process(42, tmp_path)
    child = forked_target(process, replace(parent, has_ended=True), 6)
    expected = Target(42, "worker", 40, 0, 6, executable="/opt/server", container_id=ID, host="box")
    assert child == expected
    other = renamed_target(process, child, 1)
    assert other == replace(expected, exec_count=1, executable="/opt/worker")
    (directory / "comm").unlink()
    assert renamed_target(process, other, 2) == replace(other, exec_count=2)


def test_how_a_process_ended_is_known_until_its_parent_has_waited() -> None:
    def ended(how: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sh", "-c", how])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return child

    for how, said in {"exit 0": "", "exit 3": " (status 3)", "kill -TERM $$": " (SIGTERM)"}.items():
        child = ended(how)
        assert Process(child.pid).how_ended() == said
        child.wait()
        assert Process(child.pid).how_ended() == ""
    assert Process(os.getpid()).how_ended() == ""


IDS = {1: "a", 2: "b", 3: "a"}  # Build IDs, by inode


def mapped(start: int, inode: int) -> Mapping:
    return Mapping(start, start + 0x1000, 0x2000, True, "08:01", inode, f"/{inode}.so", False)


def stored(history: CodeHistory, mapping: Mapping) -> int:
    """A return address in the mapping, as stored stacks have it."""
    shifts = history.shifts_of([mapping], lambda one: IDS[one.inode])
    (frame,) = as_stored((mapping.start + 0x10,), shifts)
    return frame


def test_addresses_in_stored_stacks() -> None:
    history = CodeHistory()
    first = mapped(0x7000, 1)
    assert stored(history, first) == 0x7010
    # The same file elsewhere, and another one with its build ID.
    assert stored(history, mapped(0x9000, 1)) == stored(history, mapped(0xB000, 3)) == 0x7010
    assert history.find(0x7010) == first
    # Another file at its place; its address is below the artificial number.
    other = stored(history, mapped(0x7000, 2))
    assert other > 1 << 61
    assert other & (1 << 48) - 1 == 0x7010
    assert history.find(other).path == "/2.so"
    assert stored(CodeHistory(history), mapped(0x7800, 2)) == other
    assert history.find(0x9010) is None
    assert CodeHistory().shifts_of([mapped(0x7000, 1), mapped(0x9000, 3)], lambda _: "a") == []
