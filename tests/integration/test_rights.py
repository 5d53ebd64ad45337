"""Every way to use tracelloc, with the rights that people have where they first try it.

``tests/rights.py`` makes them with namespaces, capabilities and seccomp.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, Builder, bytecode_of_nobody
from tests.rights import ROOT, SEEN_AT, USER
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY

pytestmark = [
    pytest.mark.long,
    pytest.mark.bpf,  # that the kernel has it, for the row that may use it
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give rights up"),
]
ROWS = "container", "nobpf", "user"
PYTHON = str(SEEN_AT / Path(sys.executable).relative_to(ROOT))
TRACELLOC = PYTHON, "-m", "tracelloc"
LACKS = {"container": "BPF", "nobpf": "BPF", "user": "root"}
REFUSED = {
    "container": "probes need CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, which root lacks here; ",
    "nobpf": "the kernel refuses BPF here; ",
    "user": "probes need root (sudo); ",
}

# Removes variables of this session, which another session must not have.
CLEAN = (
    "env", "-u", "TEST_COMPLETE", "-u", "TEST_CACHE", "-u", "PYTHONPATH",
    "-u", "PYTEST_XDIST_WORKER", "-u", "PYTEST_ADDOPTS",
)  # fmt: skip
SOME_TESTS = "tests/integration/test_doctor.py", "tests/unit/heap/test_ranges.py"


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of the row's user that everybody may look into, unlike pytest's own."""
    row = request.node.callspec.params["row"] if hasattr(request.node, "callspec") else "user"
    with tempfile.TemporaryDirectory(prefix="rights-") as directory:
        Path(directory).chmod(0o755)
        os.chown(directory, *([USER if row == "user" else 0] * 2))
        yield Path(directory)


@pytest.fixture
def leaky(builder: Builder, place: Path) -> str:
    return str(shutil.copy(builder.c("leaky"), place / "leaky"))


def run(
    row: str,
    *command: str | Path,
    beside: str = "",
    preload: str = "",
    patience_s: float = PATIENCE_S,
    status: int | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    options = [*(["--beside", beside, f"{PATIENCE_S:.0f}"] if beside else []), "--preload", preload]
    bytecode = {"PYTHONPYCACHEPREFIX": bytecode_of_nobody()} if row == "user" else {}
    done = subprocess.run(
        [sys.executable, "-m", "tests.rights", row, *options, "--", *map(str, command)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience_s, check=False,
        cwd=ROOT, env=os.environ | bytecode | variables,
    )  # fmt: skip
    assert status in (None, done.returncode), done
    return done


def reports_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def make_in(row: str, directory: Path, place: Path) -> tuple[list[str | Path], Path]:
    """Returns ``make`` for a checkout, and the link that it makes. Root's is not in /usr/local."""
    prefix = [] if row == "user" else [f"PREFIX={place}/.local"]
    make = [*CLEAN, f"HOME={place}", "make", "--no-print-directory", "-C", directory]
    return [*make, *prefix], place / ".local/bin/tracelloc"


@pytest.mark.parametrize("row", ROWS)
def test_installing(row: str, place: Path) -> None:
    """Nothing is compiled, as if all was there: ``test_from_nothing`` does that."""
    make, link = make_in(row, SEEN_AT, place)
    done = run(row, *make, "-o", ".venv/.installed", "install")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"installed: {link} ({link.parent} is not on PATH)\n"
    assert link.readlink() == SEEN_AT / ".venv/bin/tracelloc"
    assert run(row, *make, "uninstall").returncode == 0
    assert not link.is_symlink()


@pytest.mark.parametrize("row", ROWS)
def test_some_tests(row: str, place: Path) -> None:
    """Tests that need BPF are skipped and counted by reason; ``test_from_nothing`` runs all."""
    variables = f"TEST_SKIPPED={place}/skipped", f"PYTHONPATH={SEEN_AT}"
    options = "-p", "no:cacheprovider", f"--basetemp={place}/tests"
    pytest_here = *CLEAN, f"--chdir={SEEN_AT}", *variables, PYTHON, "-m", "pytest", *options
    done = run(row, *pytest_here, *SOME_TESTS, status=0)
    skipped = (place / "skipped").read_text()
    assert re.fullmatch(f"3 skipped: {re.escape(REFUSED[row])}.*\n", skipped)
    assert " passed, 3 skipped in " in done.stdout.splitlines()[-1]


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("row", ROWS)
def test_from_nothing(row: str, place: Path) -> None:
    """The README's two commands in a clone: all passes, and ends with what was skipped."""
    clone = place / "tracelloc"
    subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, clone], check=True)
    if row == "user":
        subprocess.run(["chown", "-R", f"{USER}:{USER}", clone], check=True)
    make, link = make_in(row, clone, place)
    done = run(row, *make, "install", patience_s=1800, status=0)
    assert run(row, *CLEAN, link, "doctor").returncode == 0
    done = run(row, *make, "test", patience_s=3 * 3600)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-1000:]
    tests = re.findall(r"^=+ (.*) in .* =+$", done.stdout, re.MULTILINE)
    assert [re.sub(r"\d+", "N", counts) for counts in tests] == ["N passed, N skipped"] * 2
    last = done.stdout[done.stdout.rindex(tests[-1]) :].splitlines()[1:]
    assert all(re.match(r"\d+ skipped: ", line) for line in last)
    assert any(REFUSED[row] in line for line in last)


@pytest.mark.parametrize("row", ROWS)
def test_doctor(row: str) -> None:
    done = run(row, *TRACELLOC, "doctor", status=0)
    found = re.findall(r"^(yes|no) +(\S+(?: \S+)*)  ", done.stdout, re.MULTILINE)
    others = "attach by the library", "start a program", "look into a heap", "whole machine"
    assert found == [("no", "attach by probes"), *(("yes", way) for way in others)]
    assert done.stdout.splitlines()[0] == (
        "tracelloc -p PID traces by the library only, tracelloc -- CMD by the preloaded library"
    )
    assert ("without root" in done.stdout, "sudo" in done.stdout) == (False, row == "user")


@pytest.mark.parametrize("row", ROWS)
def test_attaching_names_what_works(row: str, leaky: str) -> None:
    done = run(row, *TRACELLOC, "-p", "PID", "--text", beside=leaky, status=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"tracelloc: error: {REFUSED[row]}what works here: tracelloc leaks -p "
    ), line
    ways = ["heap -p ", "tracelloc -- CMD", "LD_PRELOAD=$(tracelloc library-path) CMD, then -p",
            "--preload inject; tracelloc doctor says how to get probes"]  # fmt: skip
    # A filter of system calls keeps the library idle in what the user starts.
    assert [way in line for way in ways] == [True, True, row == "user", True]


def test_a_process_of_another_user_leaves_what_one_can_start() -> None:
    assert run("user", *TRACELLOC, "-p", "1", "--text", status=1).stderr == (
        "tracelloc: error: probes need root (sudo); what works here: tracelloc -- CMD, "
        "LD_PRELOAD=$(tracelloc library-path) CMD, then -p; tracelloc doctor says how to get "
        "probes\n"
    )


@pytest.mark.parametrize("row", ROWS)
def test_injecting(row: str, leaky: str) -> None:
    options = "--json", "--count", "2", "--interval", "1", "--preload", "inject"
    done = run(row, *TRACELLOC, "-p", "PID", *options, beside=leaky)
    last = reports_of(done)[-1]
    assert "events come by the injected library, not by probes" in done.stderr
    assert last["lost_events"] == 0
    (first, *_) = last["top_allocators"]  # type: ignore[misc]
    assert {"record_request", "cache_lookup"} & {frame["symbol"] for frame in first["stack"]}
    words = f"without {LACKS[row]}: only the library reports, and no child is traced"
    assert words in done.stderr


def test_after_injection_the_error_names_it(leaky: str) -> None:
    command = " ".join(TRACELLOC)
    twice = f"{command} -p $1 --preload inject --json --count 1 && {command} -p $1 --text"
    done = run("user", "sh", "-c", twice, "sh", "PID", beside=leaky, status=1)
    last = done.stderr.splitlines()[-1]
    assert "it was injected earlier, and is idle (--preload inject uses it again)" in last


def test_a_program_with_the_library_needs_no_rights(leaky: str) -> None:
    """Not in containers: there the library can't know what the filter of system calls does."""
    library = str(SEEN_AT / LIBRARY.relative_to(ROOT))
    options = "--json", "--count", "2", "--interval", "1"
    done = run("user", *TRACELLOC, "-p", "PID", *options, beside=leaky, preload=library)
    assert reports_of(done)[-1]["lost_events"] == 0
    assert "events come by the preloaded library, not by probes" in done.stderr


def test_yama_leaves_what_is_started(leaky: str) -> None:
    """Nobody but root inspects processes that are no children: kernel.yama.ptrace_scope is 1."""
    yama = PYTHON, "-m", "tests.yama"
    done = run("user", *yama, "doctor", status=0)
    assert done.stdout.startswith(
        "tracelloc -p PID traces by the library only, tracelloc -- CMD by the preloaded library\n"
    )
    started = (
        "yes      attach by the library  tracelloc -p PID, if it was started with the library\n"
    )
    assert started in done.stdout
    assert "no       look into a heap" in done.stdout
    done = run("user", *yama, "-p", "PID", "--text", beside=leaky, status=1)
    assert (
        "what works here: tracelloc -- CMD, LD_PRELOAD=$(tracelloc library-path) CMD" in done.stderr
    )
    done = run("user", *yama, "-p", "PID", "--preload", "inject", beside=leaky, status=1)
    assert "can't be injected into process" in done.stderr
    assert "this user may not read its memory; tracelloc doctor lists other ways" in done.stderr
    options = "--json", "--count", "2", "--interval", "1"
    library = str(SEEN_AT / LIBRARY.relative_to(ROOT))
    done = run("user", *yama, "-p", "PID", *options, beside=leaky, preload=library)
    assert reports_of(done)[-1]["lost_events"] == 0
    done = run("user", *yama, "--text", "--", leaky, "1", status=0)
    assert "lost 0 events" in done.stderr


@pytest.mark.parametrize("row", ROWS)
def test_starting_a_program(row: str, leaky: str, place: Path) -> None:
    done = run(
        row, *TRACELLOC, "--json", "--report", place / "report.json", "--", leaky, "1", status=0
    )
    last = json.loads((place / "report.json").read_text().splitlines()[-1])
    assert last["live_allocations"] == last["allocations"] - last["frees"]
    assert last["lost_events"] == last["unmatched_frees"] == 0
    assert "no child is traced" in done.stderr


@pytest.mark.parametrize("row", ROWS)
def test_recording(row: str, leaky: str, place: Path) -> None:
    done = run(row, *TRACELLOC, "record", "-o", place / "a.rec", "--", leaky, "1", status=0)
    done = run(row, *TRACELLOC, "report", place / "a.rec", status=0)
    assert "==> lost 0 events, 0 unmatched frees, 0 truncated stacks" in done.stdout


@pytest.mark.parametrize("row", ROWS)
def test_checking_for_leaks(row: str, leaky: str) -> None:
    done = run(row, *TRACELLOC, "run", "--leaks", "--", leaky, "1", status=3)
    assert "record_request" in done.stderr


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("command", ["heap", "leaks", "holders"])
def test_looking_into_a_heap(row: str, command: str, leaky: str) -> None:
    done = run(row, *TRACELLOC, command, "-p", "PID", beside=leaky)
    assert done.returncode == (3 if command == "leaks" else 0), done
    assert "leaky (" in done.stdout
    if command == "leaks":
        assert "registers were not searched (the kernel refuses BPF here)" in done.stdout


@pytest.mark.parametrize("row", ROWS)
def test_the_whole_machine(row: str, leaky: str) -> None:
    done = run(
        row, *TRACELLOC, "top", "--json", "--count", "1", "--interval", "1", beside=leaky, status=0
    )
    assert '"leaky"' in done.stdout


@pytest.mark.parametrize("row", ROWS)
def test_pytest(row: str, place: Path) -> None:
    (place / "test_one.py").write_text("def test_one():\n    assert len(b'x' * 1_000_000)\n")
    words = "-m", "pytest", "-p", "no:cacheprovider", "--tracelloc", "-c", "/dev/null"
    done = run(row, PYTHON, *words, f"--rootdir={place}", place / "test_one.py", status=0)
    assert "1 passed" in done.stdout
    assert "977 KiB" in done.stdout


@pytest.mark.parametrize("row", ROWS)
def test_demo(row: str, leaky: str, place: Path) -> None:
    tracelloc = place / "tracelloc"
    tracelloc.write_text(f'#!/bin/sh\nexec {" ".join(TRACELLOC)} "$@"\n')
    tracelloc.chmod(0o755)
    words = SEEN_AT / "tests/demo.sh", leaky, tracelloc, place / "leaky.html"
    done = run(row, *words, DEMO_SECONDS="2", status=0)
    assert "it is started with the library" in done.stdout
    assert "2 s were too short for a verdict" in done.stdout
    assert "record_request" in (place / "leaky.html").read_text()


def test_the_leak_is_proven_without_rights(leaky: str, place: Path) -> None:
    """By the same search, and within the same time, as with probes: in JSON, and for rules."""
    report = place / "report.json"
    options = "--json", "--report", report, "--interval", "5", "--fail-if", "leak"
    end = f"{SEEN_AT}/tests/demo.sh end"
    done = run("user", *TRACELLOC, *options, "--on-leak", end, "--", leaky, "150", status=3)
    last = json.loads(report.read_text().splitlines()[-1])
    (suspect,) = [one for one in last["suspects"] if one["verdict"] == "leaking"]
    assert suspect["stack"][0]["symbol"] == "record_request"
    # Searches must agree: blocks that are newer than the one before the last do not count yet.
    assert suspect["unreachable_blocks"] > 0.2 * suspect["searched_blocks"] > 0
    assert {"task": "reading of registers", "count": 1} in last["failed_tasks"]
    assert "registers are not searched for pointers" in done.stderr
    assert last["elapsed_s"] < 120
