"""Test runners, called as ``docs/ci.md`` says: each finds a planted leak, and only that."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import tracelloc_command

pytestmark = pytest.mark.nightly

LEAKY = """#include <stdlib.h>
static void lose(void) { char *volatile lost = malloc(100); lost = 0; }
int main(void) { lose(); return 0; }
"""
TIDY = "int main(void) { return 0; }\n"
CMAKE = """cmake_minimum_required(VERSION 3.20)
project(shop C)
include(CTest)
add_executable(leaky leaky.c)
add_executable(tidy tidy.c)
add_test(NAME leaky COMMAND leaky)
add_test(NAME leaky_by_path COMMAND ${CMAKE_CURRENT_BINARY_DIR}/leaky)
add_test(NAME tidy COMMAND ${CMAKE_CURRENT_BINARY_DIR}/tidy)
"""
MESON = """project('shop', 'c')
test('leaky', executable('leaky', 'leaky.c', c_args: '-g'))
test('tidy', executable('tidy', 'tidy.c'))
"""
AUTOCONF = """AC_INIT([shop], [1])
AM_INIT_AUTOMAKE([foreign])
AC_PROG_CC
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
"""
AUTOMAKE = "check_PROGRAMS = leaky tidy\nTESTS = leaky tidy\n"
CARGO = """#[test]
fn leaky() { std::mem::forget(std::hint::black_box(Box::new([0u8; 100]))); }
#[test]
fn tidy() {}
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "leaky.c").write_text(LEAKY)
    (tmp_path / "tidy.c").write_text(TIDY)

    def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command], cwd=tmp_path, capture_output=True, text=True,
            timeout=600, env={**os.environ, "CFLAGS": "-g", **variables}, check=False,
        )  # fmt: skip

    return run


def test_ctest(run: Run, tmp_path: Path) -> None:
    """Its check of memory: of what a target is named by, and of what a path is."""
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    (program, *rest) = tracelloc_command("run", "--leaks")
    if rest != ["run", "--leaks"]:  # a file of its own calls it
        file = tmp_path / "tracelloc"
        file.write_text(f'#!/bin/sh\nexec {shlex.join([program, *rest[:-2]])} "$@"\n')
        file.chmod(0o755)
        program = str(file)
    run("cmake", "-B", ".", f"-DMEMORYCHECK_COMMAND={program}", "-DMEMORYCHECK_TYPE=Valgrind",
        "-DMEMORYCHECK_COMMAND_OPTIONS=run --leaks").check_returncode()  # fmt: skip
    run("cmake", "--build", ".").check_returncode()
    done = run("ctest", "-T", "memcheck")
    assert done.returncode, done.stdout
    assert re.findall(r"MemCheck #\d: (\w+) \.+ *(?:\*\*\*)?(\w+)", done.stdout) == [
        ("leaky", "Failed"), ("leaky_by_path", "Failed"), ("tidy", "Passed"),
    ]  # fmt: skip
    assert "Memory Leak - 2" in done.stdout
    log = (tmp_path / "Testing" / "Temporary" / "MemoryChecker.2.log").read_text()
    assert re.search(r"^100 bytes in 1 block leaked, allocated in lose:$", log, re.MULTILINE)


def wrapper() -> str:
    return shlex.join(tracelloc_command("run", "--leaks", "--"))


def test_meson(run: Run, tmp_path: Path) -> None:
    (tmp_path / "meson.build").write_text(MESON)
    run("meson", "setup", "build").check_returncode()
    done = run("meson", "test", "-C", "build", "--wrapper", wrapper())
    assert done.returncode
    found = re.findall(r"(leaky|tidy) +(\w+)", done.stdout)
    assert sorted(found[:2]) == [("leaky", "FAIL"), ("tidy", "OK")]
    (log,) = (tmp_path / "build" / "meson-logs").glob("testlog*.txt")
    assert "100 bytes in 1 block leaked, allocated in lose:" in log.read_text()


def test_automake(run: Run, tmp_path: Path) -> None:
    (tmp_path / "configure.ac").write_text(AUTOCONF)
    (tmp_path / "Makefile.am").write_text(AUTOMAKE)
    run("autoreconf", "--install").check_returncode()
    run("./configure").check_returncode()
    done = run("make", "check", f"LOG_COMPILER={wrapper()}")
    assert done.returncode
    assert re.findall(r"^(FAIL|PASS): (\w+)$", done.stdout, re.MULTILINE)[:2] == [
        ("FAIL", "leaky"), ("PASS", "tidy"),
    ]  # fmt: skip
    log = (tmp_path / "leaky.log").read_text()
    assert "100 bytes in 1 block leaked, allocated in lose:" in log


def test_cargo(run: Run, tmp_path: Path) -> None:
    """A program has all tests of a file."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").write_text(CARGO)
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "shop"\nversion = "0.1.0"\n')
    runner = {"CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": wrapper()}
    assert run("cargo", "test", "--lib", **runner).returncode
    done = run("cargo", "test", "--lib", "tidy", **runner)
    assert done.returncode == 0, done.stderr
    done = run("cargo", "test", "--lib", "leaky", **runner)
    assert "100 bytes in 1 block leaked, allocated in" in done.stderr
