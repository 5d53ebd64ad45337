"""The README's five steps: what it shows is what the commands print, but for the numbers."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import PATIENCE_S

pytestmark = [pytest.mark.bpf, pytest.mark.long]

README = (Path(__file__).parents[2] / "README.md").read_text()
VERDICT_S = 60 + PATIENCE_S  # A leak takes a minute to be proven; the machine may be busy


def section() -> str:
    return README.partition("## Your first leak")[2].partition("\n## ")[0]


def blocks(kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section(), re.DOTALL | re.MULTILINE)
    return [text for one, text in found if one == kind]


def command(start: str, target: int) -> list[str]:
    """The command that is shown with these words, for the process."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    (line,) = [line for line in lines if line.startswith(f"sudo tracelloc {start}")]
    # Others may trace a program of this name.
    line = line.replace("-n shop", f"-p {target}").replace("$(pidof shop)", str(target))
    return [sys.executable, "-m", "tracelloc", *shlex.split(line.partition(" >")[0])[2:]]


def run(words: list[str], directory: Path, log: str) -> subprocess.Popen[bytes]:
    with (directory / log).open("wb") as out:
        return subprocess.Popen(
            words, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL
        )


def without_numbers(text: str, directory: str) -> list[str]:
    """The lines without the numbers, the directory and the breaks that only the README has."""
    text = re.sub(r"\n  (?=\w+=)", " ", text.replace(directory, "/tmp/shop"))
    text = re.sub(r"0x[0-9a-f]+", "ADDRESS", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:]+Z?", "TIME", text)
    text = re.sub(r"(?<==)(\d+[ms])+|\+?[\d,.]+ ?([KM]iB|B)\b", "N", text)
    lines = re.sub(r"(?<![\w.])[\d,.]*\d\b(?! (frame|bytes))", "N", text).rstrip().splitlines()
    return [re.sub(" +", " ", line) for line in lines]


def verdict_of(log: str) -> str:
    """The suspect that leaks, with evidence and frames; empty before."""
    found = re.search(r"^\S+ pid=\d+ shop suspect=leaking .*\n(?: .*\n)+", log, re.MULTILINE)
    return "" if found is None else found[0]


def test_the_first_leak_is_as_shown(tmp_path: Path) -> None:
    (source,) = blocks("c")
    (tmp_path / "shop.c").write_text(source)
    build = re.search(r"`(gcc .*)`", section())
    subprocess.run(shlex.split(build[1]), cwd=tmp_path, check=True, timeout=PATIENCE_S)
    lost, verdict = blocks("")
    target = run([str(tmp_path / "shop")], tmp_path, "out.txt")
    started = [
        target,
        run(command("-n shop --text --top 1", target.pid), tmp_path, "log.txt"),
        run(command("-n shop --text --interval 30", target.pid), tmp_path, "reports.txt"),
    ]
    try:
        for _ in range(5):
            done = outcome(*command("leaks", target.pid), cwd=tmp_path)
            assert done.returncode == 3
            # If the heap changes while it is read, the report says that there may be more.
            if "there may be more" not in done.stdout:
                break
        assert without_numbers(done.stdout, str(tmp_path)) == without_numbers(lost, "/tmp/shop")
        deadline = time.monotonic() + VERDICT_S
        while not (found := verdict_of((tmp_path / "log.txt").read_text())):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert without_numbers(found, str(tmp_path)) == without_numbers(verdict, "/tmp/shop")
        assert "at=shop.c:7\n" in found
        started[1].send_signal(signal.SIGINT)
        assert started[1].wait(PATIENCE_S) == 0
        assert b"<title>" in (tmp_path / "shop.html").read_bytes()
        assert started[2].wait(VERDICT_S) == 3
    finally:
        for process in started:
            process.kill()
            process.wait(PATIENCE_S)
