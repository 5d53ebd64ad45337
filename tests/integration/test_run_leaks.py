"""Leak checks of programs at their ends, by an ordinary user."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.commands import outcome
from tests.harness import PATIENCE_S, TARGETS, Builder, as_nobody, tracelloc_command
from tracelloc.show.export.checks import relative_path

# Direct bytes and blocks, indirect bytes and blocks, by the functions that call `allocate`.
Leaks = dict[str, tuple[int, int, int, int]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")

OUTER = ("allocate", "main", "start_thread", "__libc_start_call_main")  # Frames that say nothing
DIRECT: Leaks = {"direct": (200, 2, 0, 0)}
# Exit status and leaks, by the arguments of `endings.c`.
ENDINGS: dict[tuple[str, ...], tuple[int, Leaks]] = {
    ("none",): (0, {}),
    ("direct",): (3, DIRECT),
    ("indirect",): (3, {"make < indirect": (64, 1, 128, 2)}),
    ("ring",): (3, {"make < ring": (64, 1, 64, 1)}),
    ("realloc",): (3, {"reallocated": (4000, 1, 0, 0)}),
    ("large",): (3, {"large": (1 << 20, 1, 0, 0)}),
    ("reachable",): (0, {}),
    ("inside",): (0, {}),
    ("local",): (0, {}),
    ("thread",): (0, {}),
    ("register",): (0, {}),
    ("ended",): (3, {"end_with_block": (160, 2, 0, 0)}),
    ("headless",): (3, {"direct < leak_last": (200, 2, 0, 0)}),
    ("deep",): (0, {}),
    ("atexit",): (0, {}),
    ("fork",): (3, {"direct < in_child": (200, 2, 0, 0)}),
    ("_exit",): (3, {"direct < leave_at_once": (200, 2, 0, 0)}),
    ("closed",): (3, {"direct < close_all": (200, 2, 0, 0)}),
    ("fail",): (5, {}),
    ("leak-fail",): (3, {"direct < leak_and_fail": (200, 2, 0, 0)}),
    ("abort",): (134, {}),
    ("kill",): (137, {}),
    ("terminate",): (3, {"direct < terminate": (200, 2, 0, 0)}),
    # The first program has leaked, too, but another one has taken its place.
    ("reachable", "direct"): (3, DIRECT),
}


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A directory in which everybody may read and write."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(scope="module")
def program(public: Path, builder: Builder) -> Path:
    copy = public / "endings"
    shutil.copy(builder.c("endings"), copy)
    return copy


def check(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a leak check as nobody; ``arguments`` are options, ``--`` and the program."""
    command = as_nobody("run", "--leaks", *map(str, arguments))
    options.setdefault("input", b"")
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, **options)


def lines_of(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """The lines of a report, without messages on progress."""
    lines = done.stderr.decode().splitlines()
    return [line for line in lines if not line.startswith("tracelloc: ")]


def leaks_in(path: Path) -> Leaks:
    """The leaks that a SARIF file lists."""
    (run,) = json.loads(path.read_text())["runs"]
    found: Leaks = {}
    for result in run["results"]:
        frames = [each["location"]["message"]["text"] for each in result["stacks"][0]["frames"]]
        names = " < ".join(each for each in frames[:3] if each not in OUTER)
        properties = result["properties"]
        figures = [
            properties[f"{kind}_{unit}"]
            for kind in ("direct", "indirect")
            for unit in ("bytes", "blocks")
        ]
        # Stacks that differ in their lines only are one.
        found[names] = tuple(map(sum, zip(found.get(names, (0, 0, 0, 0)), figures, strict=True)))
    return found


@pytest.mark.long
def test_endings(program: Path, public: Path) -> None:
    """Exit statuses and leaks of all; output is the program's, and it has no file of ours."""

    def outcome(words: tuple[str, ...]) -> tuple[int, Leaks, str]:
        file = public / f"{'-'.join(words)}.sarif"
        done = check("--sarif", file, "--", program, *words)
        assert done.stdout == b"", words
        return done.returncode, leaks_in(file), done.stderr.decode()

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(ENDINGS, pool.map(outcome, ENDINGS), strict=True))
    assert {words: outcome[:2] for words, outcome in found.items()} == ENDINGS
    assert "not checked" not in found["abort",][2]
    assert "not checked for leaks: SIGKILL ended it" in found["kill",][2]


def test_reports(program: Path, public: Path) -> None:
    """Text, JUnit, GitHub's lines and suppressions; the program's streams are its own."""
    junit, suppressions = public / "junit.xml", public / "known.txt"
    options = ("--top", 1, "--junit", junit)
    text = b"a line\n" * 100_000
    environment = {**os.environ, "GITHUB_ACTIONS": "true"}
    done = check(*options, "--", program, "copy", input=text, env=environment)
    assert (done.returncode, done.stdout) == (0, text)
    done = check(*options, "--", program, "indirect", env=environment)
    assert done.returncode == 3
    source = relative_path(f"{TARGETS}/endings.c")
    first, second, *frames = lines_of(done)
    assert re.fullmatch(
        r"==> endings \(\d+\): leaked 192 bytes in 3 blocks, of 192 bytes in 3 blocks in use at "
        "its end",
        first,
    )
    assert second == "64 bytes in 1 block leaked, allocated in allocate:"
    assert [frame.split()[0] for frame in frames[:4]] == ["allocate", "make", "indirect", "main"]
    assert frames[4] == "128 bytes in 2 blocks of 1 more call stack leaked"
    assert frames[5].startswith(f"::error file={source},line=")
    assert frames[5].endswith(
        "title=Memory leak::64 bytes in 1 block leaked, allocated in allocate"
    )
    (case,) = ElementTree.parse(junit).getroot()
    (failure,) = case
    assert case.get("name") == "leaks of endings"
    assert (failure.get("message") or "").endswith("in use at its end")
    assert "128 bytes in 2 blocks leaked, to which only leaked blocks point" in (failure.text or "")
    suppressions.write_text("# known\nleak:^indirect$\n")
    done = check("--suppressions", suppressions, "--", program, "indirect")
    assert done.returncode == 0
    assert "no leaks, of 192 bytes in 3 blocks" in done.stderr.decode()
    assert "192 bytes in 3 blocks suppressed" in done.stderr.decode()


@pytest.fixture(scope="module")
def family(public: Path, builder: Builder) -> Path:
    copy = public / "family"
    shutil.copy(builder.c("family", "-pthread"), copy)
    return copy


def leaked(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """How much each process has leaked, or why it was not checked, and what was counted."""
    heads = [line for line in lines_of(done) if line.startswith("==>")]
    bytes_of = re.compile(
        r"==> (\S+) \(\d+\): (?:leaked (\d+) bytes?.*|(no leaks|not).*?)(?: in use.*)?"
    )
    found = [bytes_of.fullmatch(head) for head in heads]
    assert all(found[:-1]), heads
    return [
        *sorted(f"{each[1]} {each[2] or each[0].partition(': ')[2]}" for each in found if each),
        heads[-1].removeprefix("==> "),
    ]


def test_every_descendant(family: Path, public: Path) -> None:
    """However a process was started, it is checked, and for what it has allocated itself."""
    sarif, junit = public / "family.sarif", public / "family.xml"
    done = check("--sarif", sarif, "--junit", junit, "--", family, family)
    assert done.returncode == 3, done.stderr.decode()
    clean = [line for line in leaked(done) if "no leaks" in line]
    assert len(clean) == 1, clean  # what has become a daemon
    sizes = [100, 101, *[102] * 8, *range(103, 109)]
    assert [line for line in leaked(done) if line not in clean] == [
        *(f"family {size}" for size in sizes), "17 processes, 17 checked",
    ]  # fmt: skip
    (run,) = json.loads(sarif.read_text())["runs"]
    assert len(run["properties"]["processes"]) == 17
    pids = {result["properties"]["pid"] for result in run["results"]}
    assert len(pids) == len(run["results"]) == len(sizes)
    assert sum(sum(each) for each in leaks_in(sarif).values()) == sum(sizes) + len(sizes)
    suite = ElementTree.parse(junit).getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["17", "16", "0"]
    done = check("--no-children", "--", family, family)
    (first,) = (line for line in lines_of(done) if line.startswith("==>"))
    assert "leaked 100 bytes in 1 block, of " in first


@pytest.mark.parametrize("by", ["sh", "make"])
def test_children_of_scripts(family: Path, public: Path, by: str) -> None:
    script = public / "Makefile"
    script.write_text(f"all:\n\t@{family} leak 41; true\n\t@{family} leak 42; cat\n")
    words = ["make", "-s", "-f", script]
    if by == "sh":
        words = ["sh", "-c", f"{family} leak 41; {family} leak 42; cat"]
    done = check("--", *words, input=b"some text")
    assert (done.returncode, done.stdout) == (3, b"some text"), done.stderr.decode()
    assert [line for line in leaked(done) if line.startswith("family")] == [
        "family 41", "family 42"
    ]  # fmt: skip
    count = 4 + 2 * (by == "make")
    assert leaked(done)[-1] == f"{count} processes, {count} checked"


def test_children_that_cannot_be_checked(family: Path, public: Path, builder: Builder) -> None:
    """The line that counts, and why; they run all the same, and nothing is called leak-free."""
    static, setuid = public / "still", public / "mighty"
    shutil.copy(builder.c("family", "-static", "-pthread"), static)
    shutil.copy(family, setuid)
    setuid.chmod(0o4755)
    script = f"{static} leak 1 && {setuid} leak 1 && {family} kill; echo $?"
    done = check("--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (1, b"137\n"), done.stderr.decode()
    assert [line for line in leaked(done) if "sh " not in line] == [
        "family not checked for leaks: SIGKILL ended it",
        "mighty not checked for leaks: the program has not preloaded it (setuid)",
        "still not checked for leaks: still has allocators of its own",
        "4 processes, 1 checked",
    ]


@pytest.mark.long
def test_a_child_that_outlives_the_program(family: Path) -> None:
    """It is checked while it runs, and goes on."""
    done = check("--", family, "leave")
    assert done.returncode == 3, done.stderr.decode()
    first = next(line for line in lines_of(done) if "leaked" in line)
    (pid,) = re.findall(r"\((\d+)\)", first)
    assert re.search(r"leaked 109 bytes in 1 block, .* in use at \d{4}-", first)
    assert lines_of(done)[-1] == "==> 2 processes, 2 checked"
    os.kill(int(pid), signal.SIGTERM)


@pytest.mark.parametrize("option", ["--at=USR1", "--every=500ms"])
def test_checks_of_a_running_program(family: Path, option: str) -> None:
    """Each has its time; the last one is at the end."""
    command = as_nobody("run", "--leaks", option, "--", family, "wait")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        for count in (1, 2):
            assert process.stdout.readline() == b"lost\n"
            if option == "--at=USR1":
                process.send_signal(signal.SIGUSR1)
            text = f"leaked {110 * count} bytes in {count} block"
            line = ""
            while text not in line:
                line = process.stderr.readline().decode()
                assert line
            assert re.search(r"in use at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", line.strip())
            process.stdin.write(b"x")
            process.stdin.flush()
        assert process.stdout.readline() == b"lost\n"
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "leaked 330 bytes in 3 blocks" in rest.decode()
    assert "in use at its end" in rest.decode()


@pytest.mark.parametrize("how", ["move", "two"])
def test_libraries_that_were_closed(public: Path, builder: Builder, how: str) -> None:
    """One leak each, with all callers, wherever the library was, and whatever came in its place."""
    rounds, names = 40, {"two": ("plugin_inner", "plugin_other")}.get(how, ("plugin_inner",))
    built = [builder.c("plugin", "-shared", "-fPIC", f"-DINNER={name}") for name in names]
    host, *libraries = (
        shutil.copy(each, public / each.name) for each in (builder.c("libraries"), *built)
    )
    file, how = public / f"{how}.sarif", how.replace("two", "stay")
    done = check("--sarif", file, "--", host, "silent", rounds, how, *libraries)
    assert done.returncode == 3, done.stderr.decode()
    count = rounds // len(names)
    assert leaks_in(file) == {
        f"{name} < plugin_allocate < use": (4321 * count, count, 0, 0) for name in names
    }
    (run,) = json.loads(file.read_text())["runs"]
    assert len(run["results"]) == len(names)


def test_files_of_several_programs(public: Path, program: Path) -> None:
    """Each has its own, by name and PID; as CTest calls it, too."""
    found = public / "each"
    found.mkdir()
    for words in (["run", "--leaks", "--top=1"], ["run", "--leaks", "--"]):
        command = tracelloc_command(*words, program, "indirect")
        command.insert(command.index("run"), f"--log-file={found}/%n.%p.log")
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        assert done.returncode == 3, done.stderr
    files = sorted(found.iterdir())
    assert len(files) == 2
    for file in files:
        name, pid, _ = file.name.split(".")
        assert name == "endings"
        first, *_ = file.read_text().splitlines()
        assert first.startswith(f"=={pid}== 64 bytes in 1 blocks are definitely lost")


def test_what_cannot_be_checked(public: Path, builder: Builder) -> None:
    """Programs that can't be run, or not with the library, fail with the reason, and don't run."""
    static, setuid = public / "static", public / "setuid"
    shutil.copy(builder.c("endings", "-static"), static)
    shutil.copy(builder.c("endings"), setuid)
    setuid.chmod(0o4755)
    for path, status, words in (
        (static, 1, "static has allocators of its own"),
        (setuid, 1, "the program has not preloaded it"),
        ("/nonexistent/program", 127, "No such file or directory"),
    ):
        done = check("--", path, "copy", input=b"text")
        assert (done.returncode, done.stdout) == (status, b""), path
        assert words in done.stderr.decode(), path


def test_mimalloc_within_python(public: Path, builder: Builder) -> None:
    """Python 3.13 and later has one; with PYTHONMALLOC=malloc, it is not used."""
    python = shutil.copy(builder.c("endings", "-Wl,--defsym=mi_malloc=main"), public / "python3.13")
    done = check("--", python, "indirect")
    assert (done.returncode, b"python3.13 has allocators of its own" in done.stderr) == (1, True)
    done = check("--", python, "indirect", env=os.environ | {"PYTHONMALLOC": "malloc"})
    assert done.returncode == 3, done.stderr


# Executes a command under a filter that ends it for one system call.
FILTERED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
kill, allow = 0x80000000, 0x7FFF0000
steps = (0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, kill), (0x06, 0, 0, allow)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize(("call", "status"), [(9999, 3), (324, 1)])
def test_filters_of_containers(program: Path, call: int, status: int) -> None:
    """The library is used if the filters that tracelloc has itself permit all of its calls."""
    command = as_nobody("run", "--leaks", "--", program, "direct")
    at = command.index("-m") - 1
    command[at:at] = [command[at], "-c", FILTERED, str(call)]
    done = outcome(*command)
    assert done.returncode == status, done.stderr
    assert ("leaked 200 bytes in 2 blocks" if status == 3 else "(seccomp)") in done.stderr


def test_tracing_without_root(program: Path, public: Path) -> None:
    """Reports and recordings of a program that an ordinary user starts, across an exec."""
    report = public / "report.json"
    command = as_nobody("--json", "--report", report, "--", program, "reachable", "reachable")
    done = outcome(*command)
    assert done.returncode == 0, done.stderr
    last = json.loads(report.read_text().splitlines()[-1])
    assert (last["live_bytes"], last["live_allocations"]) == (128, 2)
    assert last["lost_events"] == 0
    assert "without root: only the library reports" in done.stderr
    assert "executed endings; its live table was reset" in done.stderr
    recording = public / "endings.rec"
    command = as_nobody("record", "-o", recording, "--", program, "fail")
    done = outcome(*command)
    assert done.returncode == 5
    assert re.search(rf"recorded \d+ snapshots? in {recording}", done.stderr)


# Targets with a malloc of their own, before which the library does not stand.
REFUSED = {"jumper", "prefixed"}
# Valgrind's figures; what is left of a pointer on the stack may hide one of the first.
TARGETS_THAT_LEAK = {
    "early": "leaked (?:22.5 KiB in 7|19.5 KiB in 6) blocks, of 26.4 KiB in 8 blocks ",
    "reveal": "leaked 342 KiB in 100 blocks, of 342 KiB in 101 blocks ",
    "sprawl": "leaked 97.7 KiB in 100 blocks, of 97.7 KiB in 100 blocks ",
}
# The other targets of this project that end at the end of their input.
CLEAN_TARGETS = (
    "chain", "forks", "leaderless", "libraries", "lineage", "lost", "mapper",
    "pagedout", "plain", "pool", "relay", "reporter", "reserve", "sandbox", "shapes",
    "shortlived", "twins", "usable", "weakly",
)  # fmt: skip


@pytest.mark.long
def test_targets_leak_only_where_they_should(public: Path, builder: Builder) -> None:
    def outcome(name: str) -> tuple[int, str]:
        done = check("--", shutil.copy(builder.c(name), public / name))
        return done.returncode, done.stderr.decode()

    names = (*CLEAN_TARGETS, *TARGETS_THAT_LEAK, *REFUSED)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(names, pool.map(outcome, names), strict=True))
    for name, (status, text) in found.items():
        if name in REFUSED:
            assert (status, "has allocators of its own" in text) == (1, True), text
        else:
            words = TARGETS_THAT_LEAK.get(name, "no leaks, ")
            assert status == 3 * (name in TARGETS_THAT_LEAK), text
            assert re.search(rf"==> {name} \(\d+\): {words}", text), text
