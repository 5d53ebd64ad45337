"""The README's five steps and the tutorial: what they show is printed, but for the numbers."""

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import PATIENCE_S, wait_until
from tracelloc.show import manual

pytestmark = [pytest.mark.bpf, pytest.mark.long]

README = (Path(__file__).parents[2] / "README.md").read_text()
VERDICT_S = 60 + PATIENCE_S  # A leak takes a minute to be proven; the machine may be busy


def section() -> str:
    return README.partition("## Your first leak")[2].partition("\n## ")[0]


def blocks(kind: str, text: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text or section(), re.DOTALL | re.MULTILINE)
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


def awaited(find: Callable[[], str], patience_s: float) -> str:
    deadline = time.monotonic() + patience_s
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def suspect_of(log: str, verdict: str) -> list[str]:
    """A suspect's line and that of its evidence; empty before."""
    found = re.search(rf"^\S+ pid=\d+ kiosk suspect={verdict}.*\n .*\n", log, re.MULTILINE)
    return [] if found is None else without_numbers(found[0], "/nowhere")


def test_the_tutorial_is_as_shown(tmp_path: Path) -> None:
    """But for ``top``, which has other processes, and the comparison, which needs a fix."""
    page = manual.text_of("tutorial")
    (source,) = blocks("c", page)
    (tmp_path / "kiosk.c").write_text(source)
    build = "gcc -g -O1 -o kiosk kiosk.c"
    assert f"`{build}`" in page
    subprocess.run(shlex.split(build), cwd=tmp_path, check=True, timeout=PATIENCE_S)
    _, lost, kept, suspects, _ = blocks("", page)
    leaking, growing = (suspect_of(suspects, word) for word in ("leaking", "growing"))
    target = run([str(tmp_path / "kiosk")], tmp_path, "out.txt")
    trace = [sys.executable, "-m", "tracelloc", "-p", str(target.pid), "--text", "--interval", "10"]
    started = [target, run(trace, tmp_path, "log.txt")]
    try:
        for words, shown in ("leaks", lost), ("holders", kept):
            rows = {
                line for line in without_numbers(shown, "/nowhere") if "no root leads" not in line
            }

            def are_shown(words: str = words, rows: set[str] = rows) -> bool:
                done = outcome(*trace[:3], words, "-p", target.pid)
                return rows <= set(without_numbers(done.stdout, "/nowhere"))

            wait_until(are_shown)

        def is_judged() -> str:
            log = (tmp_path / "log.txt").read_text()
            is_growing = suspect_of(log, "growing rate=.*open_session")
            return log if suspect_of(log, "leaking") and is_growing else ""

        log = awaited(is_judged, VERDICT_S + 60)
        assert suspect_of(log, "leaking")[0] == leaking[0]
        assert "unreachable: no pointer to them is left" in suspect_of(log, "leaking")[1]
        assert suspect_of(log, "growing rate=.*open_session") == growing
    finally:
        for process in started:
            process.kill()
            process.wait(PATIENCE_S)


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
        found = awaited(lambda: verdict_of((tmp_path / "log.txt").read_text()), VERDICT_S)
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
