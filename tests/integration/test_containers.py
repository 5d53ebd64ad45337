"""Targets in other namespaces and roots, targets by name, and targets that can't be traced."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import PATIENCE_S, Builder, Target, Targets, Tracelloc, run_tracelloc

pytestmark = [pytest.mark.bpf, pytest.mark.long]

MUSL_LOADER = Path("/lib/ld-musl-x86_64.so.1")


def assert_books(tracer: Tracelloc, target: Target) -> None:
    books = json.loads(target.ask("run"))
    report = tracer.final_report()
    assert report["lost_events"] == report["unmatched_frees"] == 0
    assert report["live_allocations"] == sum(count for count, _ in books.values())
    assert report["live_bytes"] == sum(size for _, size in books.values())


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_container_with_another_libc(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    """Own mount and PID namespaces, a root with nothing but musl, and the files deleted."""
    root = tmp_path / "root"
    (root / "lib").mkdir(parents=True)
    shutil.copy(MUSL_LOADER.resolve(), root / "lib" / MUSL_LOADER.name)
    shutil.copy(builder.c("books", "-DNO_PVALLOC", compiler="musl-gcc"), root / "books")
    target = targets.start(
        "unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", root,
         "/books", 4, 3000, 5, 500
    )  # fmt: skip
    pid = child_of(target.pid)
    assert Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    shutil.rmtree(root / "lib")
    (root / "books").unlink()
    tracer = Tracelloc("-p", pid, "--json")
    assert_books(tracer, target)
    files = {found["file"] for found in tracer.last()["malloc_libraries"]}
    assert files == {f"{root}/lib/{MUSL_LOADER.name}"} or files == {f"/lib/{MUSL_LOADER.name}"}


def test_replaced_program(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    """A static program whose file has been replaced by another one since it was started."""
    program = tmp_path / "books"
    shutil.copy(builder.c("books", "-static"), program)
    target = targets.start(program, 4, 3000, 5, 500)
    program.unlink()
    program.write_text("something else\n")
    assert_books(Tracelloc("-p", target.pid, "--json"), target)


def test_by_name(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    program = tmp_path / "telling-name-of-mine"
    shutil.copy(builder.c("books"), program)
    first = targets.start(program, 4, 3000, 5, 500)
    for name in (program.name, program.name[:15]):
        assert Tracelloc("-n", name, "--json").final_report()["pid"] == first.pid
    result = run_tracelloc("-n", "no-such-name", "--text", status=1)
    assert "no process is called no-such-name" in result.stderr


def test_by_the_name_of_a_script(targets: Targets, tmp_path: Path) -> None:
    script = tmp_path / "telling-script-of-mine.py"
    script.write_text("print('ready', flush=True)\ninput()\n")
    target = targets.start("/usr/bin/python3", "-u", script)
    assert Tracelloc("-n", script.name, "--json").final_report()["pid"] == target.pid


def refused(pid: int) -> str:
    result = run_tracelloc("-p", pid, "--text", status=1)
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_go_program(targets: Targets, tmp_path: Path, go_cache: Path) -> None:
    source = tmp_path / "sleeper.go"
    source.write_text(
        'package main\nimport ("fmt"; "os")\n'
        'func main() { fmt.Println("ready"); b := make([]byte, 1); os.Stdin.Read(b) }\n'
    )
    variables = {"CGO_ENABLED": "0", "GOCACHE": str(go_cache), "GO111MODULE": "off"}
    build = "go", "build", "-o", tmp_path / "sleeper", source
    run(*build, timeout=2 * PATIENCE_S, env=os.environ | variables)
    line = refused(targets.start(tmp_path / "sleeper").pid)
    assert "it is a Go program" in line
    assert "net/http/pprof" in line
