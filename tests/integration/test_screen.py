"""The screen in a real terminal, on real processes: started, used, left."""

import json
import os
import re
import select
import shlex
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.harness import (
    CHAIN_BYTES,
    PATIENCE_S,
    TARGETS,
    Builder,
    Target,
    Targets,
    folded_sum,
    tracelloc_command,
)
from tests.terminal import Terminal
from tracelloc.text import format_size

pytestmark = pytest.mark.bpf


@pytest.fixture
def target(targets: Targets) -> Target:
    return targets.c("chain")


def trace(target: Target, directory: Path, *more: str, **options: object) -> Terminal:
    command = tracelloc_command("-p", target.pid, *more)
    return Terminal(command, directory, **options)  # type: ignore[arg-type]


def test_a_walk(target: Target, tmp_path: Path) -> None:
    """Start, sort, search, drill down, baseline, export, quit."""
    flames = tmp_path / "at-the-end.folded"
    with trace(target, tmp_path, "-o", str(flames), width=120, height=40) as terminal:
        terminal.wait_for("no allocations seen yet")
        assert target.ask("go") == "done"
        terminal.wait_for(r"Heap +7\.58 KiB .* 4 blocks")
        lines = terminal.wait_for(r"recurse .*← main")
        assert max(map(len, lines)) == 120, lines
        assert not any(re.search(r"\blost\b", line) for line in lines)

        terminal.press("a")
        terminal.wait_for(r"blocks ▼")
        terminal.press("/")
        terminal.type("no such thing")
        terminal.wait_for("no stacks match")
        terminal.press("Escape")
        terminal.wait_for("recurse .*← main")
        terminal.press("Enter")
        terminal.wait_for(r"^ allocated \d")
        # The program's own source is there to be read.
        terminal.wait_for(r"chain\.c:\d+")
        terminal.wait_for(r"^→ +\d+ .*;")
        terminal.press("Escape")
        terminal.wait_for("1 Stacks")
        terminal.press("5")
        terminal.wait_for(r"usable sizes \(glibc\): .* wasted .*, 4 read from the process")
        terminal.press("1")
        terminal.wait_for("recurse .*← main")

        terminal.press("b")
        terminal.wait_for("no live blocks allocated since the baseline")
        terminal.press("b")
        terminal.wait_for("recurse .*← main")

        terminal.press("e")
        suggestion = f"-{target.pid}-"
        terminal.wait_for(suggestion)
        # Textual runs a key's action after it has taken in what is typed meanwhile.
        terminal.press("C-u")
        terminal.wait_until(lambda lines: suggestion not in "".join(lines), "an empty line")
        terminal.type("mine.folded")
        terminal.wait_for(r"mine\.folded")
        terminal.press("Enter")
        terminal.wait_for(r"wrote .*mine\.folded")
        terminal.wait_until(lambda lines: "Export:" not in "".join(lines), "the dialog closed")
        assert terminal.quit() == 0
        said = "\n".join(terminal.screen())
    assert "wrote" in said
    for path in (flames, tmp_path / "mine.folded"):
        assert folded_sum(path) == CHAIN_BYTES
    assert target.end() == 0


def test_what_an_ended_process_did(targets: Targets, tmp_path: Path) -> None:
    """The screen stays on the final state. Threads and libraries are asked for after the end only.

    The figures are the program's own.
    """
    relay = targets.c("relay", flags=("-pthread",))
    with trace(relay, tmp_path, width=160, height=40) as terminal:
        terminal.wait_for("no allocations seen yet")
        assert relay.ask("go") == "done"
        terminal.wait_for(r"peak 4\.84 MiB")
        assert relay.end() == 0
        terminal.wait_for("process ended")
        terminal.press("8")
        terminal.wait_for("libc")
        terminal.press("7")
        terminal.wait_for(r"freed by other threads: 293 KiB in 300 blocks, 5\.2 % of all")
        terminal.press("4")
        for metric in ("blocks", "allocated", "growth", "peak"):
            terminal.press("w")
            terminal.wait_for(rf"by {metric} \(w\)")
        terminal.wait_for(r"4\.77 MiB  98\.6 % .* rise")
        assert terminal.quit() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals(target: Target, tmp_path: Path, number: signal.Signals) -> None:
    flames = tmp_path / "app.folded"
    with trace(target, tmp_path, "-o", str(flames)) as terminal:
        terminal.wait_for("no allocations seen yet")
        assert target.ask("go") == "done"
        terminal.wait_for(r"Heap +7\.58 KiB")
        os.kill(process_of(terminal), signal.SIGUSR1)
        terminal.wait_for("wrote")
        assert flames.exists()
        flames.unlink()
        os.kill(process_of(terminal), number)
        assert terminal.wait_for_end() == 0
    assert flames.exists()
    assert target.end() == 0


def process_of(terminal: Terminal) -> int:
    """The program that the terminal's shell runs."""
    shell = terminal.pid
    return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])


def test_errors_come_before_the_screen(tmp_path: Path) -> None:
    with Terminal(tracelloc_command("-p", 4_194_304), tmp_path) as terminal:
        assert terminal.wait_for_end() == 1
        assert terminal.screen()[0] == "tracelloc: error: there is no process 4194304"
    line = shlex.join(tracelloc_command("-p", 1, "--tui"))
    with Terminal(["sh", "-c", f"{line} </dev/null"], tmp_path, width=160) as terminal:
        assert terminal.wait_for_end() == 2
        assert "--tui needs a terminal" in terminal.screen()[0]


@pytest.mark.parametrize("words", ["</dev/null", "| cat", "2>/dev/null"])
def test_no_screen_without_a_terminal(target: Target, tmp_path: Path, words: str) -> None:
    """Reports are what one gets where a screen could not be seen, or could take no keys."""
    line = shlex.join(tracelloc_command("-p", target.pid, "--duration", "300ms"))
    with Terminal(["sh", "-c", f"{line} {words}"], tmp_path) as terminal:
        terminal.wait_for("==> no allocations seen yet")
        assert terminal.wait_for_end() == 0


def test_the_terminal_goes_away(target: Target, tmp_path: Path) -> None:
    """Files are written, the target goes on."""
    flames = tmp_path / "app.folded"
    with trace(target, tmp_path, "-o", str(flames)) as terminal:
        terminal.wait_for("no allocations seen yet")
        assert target.ask("go") == "done"
        terminal.wait_for(r"Heap +7\.58 KiB")
        descriptor = os.pidfd_open(process_of(terminal))
    assert select.select([descriptor], [], [], PATIENCE_S)[0], "it did not end"
    os.close(descriptor)
    assert flames.exists()
    assert target.end() == 0


def test_picker_and_back(target: Target, tmp_path: Path) -> None:
    with Terminal(tracelloc_command(), tmp_path, width=100) as terminal:
        terminal.wait_for("which process")
        terminal.type(f"{target.pid}")
        terminal.wait_for(rf"^› *{target.pid} .* malloc in libc")
        terminal.press("Enter")
        terminal.wait_for(rf"chain-\w+ \({target.pid}\)|\({target.pid}\)  libc")
        terminal.press("P")
        terminal.wait_for("which process.*Esc goes back")
        terminal.press("Escape")
        terminal.wait_for(rf"\({target.pid}\)  libc")
        assert terminal.quit() == 0


def test_the_machine(tmp_path: Path) -> None:
    with Terminal(tracelloc_command("top"), tmp_path, width=100) as terminal:
        terminal.wait_for(r"processes, .* in use")
        terminal.press("Enter")
        terminal.wait_for("Walk its heap")
        terminal.press("Escape")
        terminal.wait_for(r"^› .* \d+  \S")
        assert terminal.quit() == 0


def test_a_terminal_is_restored_if_we_are_killed(target: Target, tmp_path: Path) -> None:
    """The shell that waits for it is gone after a normal end as well."""
    with trace(target, tmp_path) as terminal:
        terminal.wait_for("no allocations seen yet")
        os.kill(process_of(terminal), signal.SIGKILL)
        terminal.wait_for("tracelloc: killed")
        assert terminal.wait_for_end() != 0
    assert target.ask("go") == "done"
    assert target.end() == 0


@pytest.mark.parametrize(
    "environment",
    [{"NO_COLOR": "1"}, {"TERM": "screen", "COLORTERM": ""}],
    ids=["no colour", "16 colours"],
)
def test_few_colours(target: Target, tmp_path: Path, environment: dict[str, str]) -> None:
    with trace(target, tmp_path, environment=environment) as terminal:
        terminal.wait_for("no allocations seen yet")
        assert target.ask("go") == "done"
        terminal.wait_for("recurse .*← main")
        assert "38;2;" not in terminal.colours()
        terminal.resize(60, 16)
        terminal.wait_until(lambda lines: len(lines[0]) <= 60, "a narrow screen")
        terminal.wait_for("recurse")
        assert terminal.quit() == 0


def test_a_command_beside_the_screen(builder: Builder, tmp_path: Path) -> None:
    """It has a terminal of its own, whose last output is shown; its status is ours."""
    copy = tmp_path / "output"
    script = "stty size; printf '\\033[1mhello\\033[0m\\n'; read _; exit 5"
    command = tracelloc_command("--program-output", str(copy), "--", "sh", "-c", script)
    with Terminal(command, tmp_path, width=110, height=30) as terminal:
        terminal.wait_for("1 Stacks")
        terminal.press("0")
        terminal.wait_for("^30 110$")
        terminal.wait_for("^hello")
        terminal.leave("no longer tracing; waiting for sh")
        terminal.press("C-c")
        terminal.wait_for(f"ended with {128 + signal.SIGINT}")
    assert b"\x1b[1mhello\x1b[0m\r\n" in copy.read_bytes()


def test_processes_on_the_screen(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("lineage")
    command = tracelloc_command("-p", target.pid, "--follow")
    with Terminal(command, tmp_path, width=110, height=30) as terminal:
        terminal.wait_for("1 Stacks")
        family = json.loads(target.ask("tree 3 0"))
        terminal.press("9")
        terminal.wait_for(r"1 of 4 processes running")
        terminal.wait_for(r"3 ended \(D opens\)")
        terminal.press("D")
        pids = [pid for pid, *_ in family if pid != target.pid]
        lines = terminal.wait_until(
            lambda lines: all(any(f" {p} " in line for line in lines) for p in pids), "all of them"
        )
        rows = [line for line in lines if any(f" {pid} " in line for pid in pids)]
        assert [" ended" in row for row in rows] == [True] * 3
        terminal.press("End", "Enter")
        terminal.wait_for(rf"\(({'|'.join(map(str, pids))})\)")
        terminal.wait_for("1 Stacks")
        assert terminal.quit() == 0


def test_workers_together(targets: Targets, tmp_path: Path) -> None:
    """What the requests to a prefork server have left, whichever worker served them."""
    workers, requests, size = 3, 40, 5003
    server = targets.start(sys.executable, TARGETS / "prefork.py", workers)
    command = tracelloc_command("-p", server.pid, "--follow")
    with Terminal(command, tmp_path, width=120, height=40) as terminal:
        terminal.wait_for("no allocations seen yet")
        address = ("127.0.0.1", int(server.ask("go")))

        def ask(request: str) -> int:
            with socket.create_connection(address) as connection:
                connection.sendall(f"{request}\n".encode())
                return int(connection.makefile().read())

        served = Counter(ask(f"keep {size}") for _ in range(requests))
        terminal.wait_for(rf"\({server.pid}\) 1 of {1 + workers} \(T: all\)")
        terminal.press("T")
        terminal.wait_for(f"all {1 + workers} processes")
        # One row, for they all have the same code in the same file.
        terminal.wait_for(rf" {format_size(requests * size)} +{requests} ")
        assert terminal_export(terminal, "all.json", tmp_path, size) == requests

        gone = ask("quit")
        terminal.wait_for(": 3 running, 1 ended")
        terminal.press("T")
        terminal.wait_for(f"{workers} running processes")
        left = requests - served[gone]
        terminal.wait_for(rf" {format_size(left * size)} +{left} ")
        assert terminal_export(terminal, "running.json", tmp_path, size) == left
        terminal.press("T")
        terminal.wait_for(rf"\({server.pid}\) 1 of")
        assert terminal.quit() == 0
    assert server.end() == 0


def terminal_export(terminal: Terminal, name: str, directory: Path, size: int) -> int:
    """How many blocks of a size the screen writes that it is showing."""
    terminal.press("e")
    terminal.wait_for("-processes-")
    terminal.press("C-u")
    terminal.wait_until(lambda lines: "-processes-" not in "".join(lines), "an empty line")
    terminal.type(name)
    terminal.wait_for(rf"{name}")
    terminal.press("Enter")
    terminal.wait_until(lambda lines: "Export:" not in "".join(lines), "the dialog closed")
    stacks = json.loads((directory / name).read_text())["stacks"]
    (mine,) = [s for s in stacks if s["bytes"] and s["bytes"] == s["allocations"] * size]
    return int(mine["allocations"])
