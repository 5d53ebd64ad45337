"""Output that can't be written ends every command alike, whoever finds out."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from tests.harness import DATA
from tracelloc.command.subcommands import subcommand_names

RECORDING: Final = str(DATA / "demo" / "leaky.rec")
ONCE: Final = [
    "--version", "--help", "--help-all", "completion bash", "diff REC REC",
    "diff REC REC --markdown", "doctor", "heap -p PID", "heap -p PID --json", "help", "help leaks",
    "holders -p PID", "leaks --help", "leaks -p PID", "library-path", "mcp", "objects -p PID",
    "report REC", "report REC --format folded", "schema", "symbols -p PID", "top --count 1",
    "watch --example config",
]  # fmt: skip
ENDLESS: Final = [
    "heap -p PID --every 100ms",
    "leaks -p PID --every 100ms",
    "objects -p PID --every 100ms",
    "top --interval 100ms",
]
# Subcommands that write nothing to standard output.
SILENT: Final = {"merge", "open", "record", "run"}
REQUEST: Final = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A Python program that waits."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def start(call: str, pid: int, **options: Any) -> subprocess.Popen[bytes]:
    words = {"PID": str(pid), "REC": RECORDING}
    arguments = [words.get(word, word) for word in call.split()]
    return subprocess.Popen(
        [sys.executable, "-m", "tracelloc", *arguments],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, list[str]]:
    """Returns the exit status and the error output."""
    said = process.communicate(REQUEST, timeout=180)[1].decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    return process.returncode, [line for line in said.splitlines() if "error" in line.lower()]


def test_all_subcommands_are_tried() -> None:
    tried = {call.split()[0] for call in ONCE} - {"--version", "--help", "--help-all"}
    assert sorted(tried | SILENT) == subcommand_names()


@pytest.mark.parametrize("call", ONCE)
def test_output_that_cannot_be_written(call: str, pid: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full, open(writer, "wb") as pipe:
        begun = [start(call, pid, stdout=stream) for stream in (pipe, full)]
    begun.append(start(call, pid, preexec_fn=partial(os.close, 1)))
    cannot = "tracelloc: error: standard output cannot be written: "
    assert [end_of(process) for process in begun] == [
        (141, []),
        (1, [f"{cannot}No space left on device"]),
        (1, [f"{cannot}it is closed"]),
    ]


@pytest.mark.parametrize("call", ENDLESS)
def test_a_reader_that_leaves(call: str, pid: int) -> None:
    process = start(call, pid, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert end_of(process) == (141, [])


def test_messages_stay_out_of_standard_output(pid: int) -> None:
    process = start(
        "heap -p 2147483647", pid, stdout=subprocess.PIPE, preexec_fn=partial(os.close, 2)
    )
    assert process.communicate(timeout=180)[0] == b""
    assert process.returncode == 1
