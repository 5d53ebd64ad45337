"""Programs do under tracelloc what they do without: exit status and outputs are compared."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import Builder, only_with_capabilities, run_tracelloc

pytestmark = [pytest.mark.bpf, pytest.mark.long]

# What is started directly.
HARM = (
    "abort", "callbacks", "contexts", "descriptors", "environment", "fixed", "identity", "profile",
    "segv", "userfault", "vfork",
)  # fmt: skip
PROGRAMS = {name: f"harm {name}" for name in HARM} | {
    "exceptions": "harm-cpp",
    "exec": "harm exec 7",
    "filter": "sandbox prctl alone",
    "filter by an instruction": "sandbox-inline inline alone",
    "libraries": "libraries beside 50 3 plugin.so",
    "lock": "harm lock 0",
    "musl": "threads-musl",
    "musl, static": "threads-musl-static",
    "sanitized": "sanitized",
    "setuid": "harm-setuid environment",
    "static": "harm-static callbacks",
    "strace": "strace -f -o trace harm threads 1",
    "strict": "sandbox strict alone",
    "strict by an instruction": "sandbox-inline inline-strict alone",
    "thread sanitizer": "harm-tsan threads 1",
    "threads": "harm threads 4",
}

# What a shell runs, and executes if its own process is to do it.
SCRIPTS = {
    "address space for little": "ulimit -v 300000; exec harm blocks 20",
    "address space for much": "ulimit -v 400000; exec harm blocks 300",
    "address space for less": "ulimit -v 200000; exec harm blocks 300",
    "few descriptors": "ulimit -n 4; exec harm blocks 20",
    "small files": "ulimit -f 1000; exec harm blocks 20",
    "small stack": "ulimit -s 64; exec harm threads 1",
    "little locked": "ulimit -l 64; exec harm lock 65534",
    "some locked": "ulimit -l 8000; exec harm lock 65534",
    # Only counted: a return probe's trampoline stands for malloc's caller in the stacks it prints.
    "sanitized, leaking": "exec sanitized leak 2> >(grep -c SUMMARY)",
    "setuid, executed": "harm-setuid environment; exec harm-setuid identity",
    "killed": "kill -9 $$",
    "trap": "trap 'echo ended; exit 9' TERM; (kill $$) & wait; wait; echo no",
    "pipes": """
        for n in 1 2; do
            seq 2000 | sort -rn | head -3 | awk '{s += $1} END {print s}'
        done
    """,
    "compiler": """
        exec "$(gcc -print-prog-name=cc1)" -quiet -O2 -o /dev/stdout - <<< '
        int fibonacci(int n) { return n > 1 ? fibonacci(n - 1) + fibonacci(n - 2) : n; }'
    """,
    "git": """
        git init -q -b main . && git config user.name A && git config user.email a@b.org &&
        git commit -q --allow-empty -m first && exec git log --format=%an:%s
    """,
    "node": """
        exec node -e '
            const { Worker } = require("worker_threads")
            const body = `require("worker_threads").parentPort.postMessage(0)`
            const all = []
            let ended = 0
            for (let n = 0; n < 1e5; n++) all.push({ n })
            for (let n = 0; n < 2; n++)
                new Worker(body, { eval: true }).on("exit", () => console.log(++ended, all.length))
        '
    """,
    "perl": """
        exec perl -Mthreads -e '
            sub work { my $n = 0; $n += length("x" x $_) for 1 .. 1000; return $n }
            print $_->join, " " for map { threads->create(\\&work) } 1 .. 4;
        '
    """,
    "php": """
        exec php -r '
            for ($n = 0; $n < 50000; $n++) $all[] = str_repeat("x", $n % 50);
            echo count($all);
        '
    """,
    "python": """
        exec /usr/bin/python3 -c '
import multiprocessing
with multiprocessing.Pool(2) as pool:
    print(sum(pool.map(abs, range(-50, 50))))
'
    """,
    "redis": """
        {
            until redis-cli -s ./socket ping >/dev/null 2>&1; do sleep 0.02; done
            redis-benchmark -s ./socket -n 5000 -q -t set >/dev/null
            redis-cli -s ./socket dbsize
            redis-cli -s ./socket shutdown nosave
        } &
        exec redis-server --port 0 --unixsocket ./socket --save '' --logfile /dev/null
    """,
}

# Exit statuses that are not 0.
STATUS = {
    "abort": 128 + 6, "segv": 128 + 11, "killed": 128 + 9, "profile": 3,
    "address space for less": 1, "sanitized, leaking": 1, "trap": 9,
}  # fmt: skip

# Exit status as shells have it, standard output, standard error without tracelloc's messages.
Outcome = tuple[int, str, str]


def outcome_of(done: subprocess.CompletedProcess[str]) -> Outcome:
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    lines = done.stderr.splitlines(keepends=True)
    messages = "".join(line for line in lines if not line.startswith("tracelloc: "))
    return status, done.stdout, messages


@pytest.fixture(scope="module")
def programs(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of programs under the names that commands have for them."""
    directory = tmp_path_factory.mktemp("programs")
    built = {
        "harm": builder.c("harm", "-ldl"),
        "harm-static": builder.c("harm", "-static", "-Wl,--no-warnings"),
        "harm-tsan": builder.c("harm", "-fsanitize=thread", "-ldl"),
        "libraries": builder.c("libraries", "-ldl"),
        "plugin.so": builder.c("plugin", "-shared", "-fPIC"),
        "sandbox": builder.c("sandbox"),
        "sandbox-inline": builder.c("sandbox", "-DINLINE"),
        "sanitized": builder.c("sanitized", "-fsanitize=address"),
        "threads-musl": builder.c("shortlived", compiler="musl-gcc"),
        "threads-musl-static": builder.c("shortlived", "-static", compiler="musl-gcc"),
        "harm-cpp": builder.cpp("harm"),
    }
    for name, path in built.items():
        (directory / name).symlink_to(path)
    shutil.copy(built["harm"], directory / "harm-setuid")
    os.chown(directory / "harm-setuid", 65534, 65534)
    (directory / "harm-setuid").chmod(0o4755)
    return directory


def with_paths(command: str, programs: Path) -> str:
    """A command with the paths of these programs, so that the environment is that of all tests."""
    names = "|".join(sorted((each.name for each in programs.iterdir()), key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({names})(?![\w-])", rf"{programs}/\1", command)


def environment() -> dict[str, str]:
    """It tells programs nothing that changes from test to test."""
    return {name: e for name, e in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Outcome]:
    """What a command does if it is not traced; each is run once."""

    @functools.cache
    def run(command: tuple[str, ...]) -> Outcome:
        rights = only_with_capabilities() if os.environ.get("TEST_CAPABILITIES") else []
        cwd = tmp_path_factory.mktemp("untraced")
        return outcome_of(outcome(*rights, *command, env=environment(), cwd=cwd))

    return run


@pytest.mark.parametrize("way", ["auto", "off"])
@pytest.mark.parametrize("case", [*PROGRAMS, *SCRIPTS])
def test_no_harm(
    programs: Path,
    untraced: Callable[[tuple[str, ...]], Outcome],
    tmp_path: Path,
    case: str,
    way: str,
) -> None:
    """By the preloaded library, where that is possible, and by probes."""
    if case in PROGRAMS:
        command = tuple(with_paths(PROGRAMS[case], programs).split())
    else:
        command = ("bash", "-c", with_paths(SCRIPTS[case], programs))
    expected = untraced(command)
    assert expected[0] == STATUS.get(case, 0), expected
    done = run_tracelloc(
        "--text", "--interval", 60, "--report", tmp_path / "report", "--preload", way, "--",
        *command,
        env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert outcome_of(done) == expected, done.stderr
    assert "tracelloc: tracing" in done.stderr
