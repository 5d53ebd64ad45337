"""The README's five steps and the tutorial: what they show is printed, but for the numbers."""

import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from tests.commands import background, outcome, run
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


@contextmanager
def place_with(source: str, build: str, place: Path) -> Iterator[Callable[..., Popen[bytes]]]:
    """Builds a program; yields what starts commands beside it. All are ended in the end."""
    words = shlex.split(build)
    (place / words[-1]).write_text(source)
    run(*words, cwd=place)
    with ExitStack() as stack:

        def start(*words: str, log: str = "out.txt") -> Popen[bytes]:
            out = stack.enter_context((place / log).open("wb"))
            options = {"cwd": place, "stdin": DEVNULL, "stdout": out, "stderr": DEVNULL}
            return stack.enter_context(background(*words, **options))

        yield start


def without_numbers(text: str, directory: str) -> list[str]:
    """The lines without the numbers, the directory and the breaks that only the README has."""
    text = re.sub(r"\n  (?=\w+=)", " ", text.replace(directory, "/tmp/shop"))
    text = re.sub(r"0x[0-9a-f]+", "ADDRESS", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:]+Z?", "TIME", text)
    text = re.sub(r"(?<==)(\d+[ms])+|\+?[\d,.]+ ?([KM]iB|B)\b", "N", text)
    lines = re.sub(r"(?<![\w.])[\d,.]*\d\b(?! (frame|bytes))", "N", text).rstrip().splitlines()
    return [re.sub(" +", " ", line) for line in lines]


def suspect_of(log: str, verdict: str) -> list[str]:
    """A suspect's line and that of its evidence; empty before."""
    found = re.search(rf"^\S+ pid=\d+ kiosk suspect={verdict}.*\n .*\n", log, re.MULTILINE)
    return [] if found is None else without_numbers(found[0], "/nowhere")


def test_the_tutorial_is_as_shown(tmp_path: Path) -> None:
    """But for ``top``, which has other processes, and the comparison, which needs a fix."""
    page, build = manual.text_of("tutorial"), "gcc -g -O1 -o kiosk kiosk.c"
    assert f"`{build}`" in page
    _, lost, kept, suspects, _ = blocks("", page)
    growth = "growing rate=.*open_session"
    leaking, growing = suspect_of(suspects, "leaking"), suspect_of(suspects, growth)
    with place_with(blocks("c", page)[0], build, tmp_path) as start:
        pid = str(start("./kiosk").pid)
        tracelloc = [sys.executable, "-m", "tracelloc"]
        start(*tracelloc, "-p", pid, "--text", "--interval", "10", log="log.txt")
        for words, shown in ("leaks", lost), ("holders", kept):
            rows = without_numbers(shown, "/nowhere")
            rows = [line for line in rows if "no root leads" not in line]

            def are_shown(words: str = words, rows: list[str] = rows) -> bool:
                done = outcome(*tracelloc, words, "-p", pid)
                return set(rows) <= set(without_numbers(done.stdout, "/nowhere"))

            wait_until(are_shown)

        def judged() -> str:
            log = (tmp_path / "log.txt").read_text()
            return log if suspect_of(log, "leaking") and suspect_of(log, growth) else ""

        log = wait_until(judged, patience_s=VERDICT_S + 60)
    assert suspect_of(log, "leaking")[0] == leaking[0]
    assert "unreachable: no pointer to them is left" in suspect_of(log, "leaking")[1]
    assert suspect_of(log, growth) == growing


def verdict_of(log: str) -> str:
    """The suspect that leaks, with evidence and frames; empty before."""
    found = re.search(r"^\S+ pid=\d+ shop suspect=leaking .*\n(?: .*\n)+", log, re.MULTILINE)
    return "" if found is None else found[0]


def test_the_first_leak_is_as_shown(tmp_path: Path) -> None:
    build = re.search(r"`(gcc .*)`", section())
    lost, verdict = blocks("")
    with place_with(blocks("c")[0], build[1], tmp_path) as start:
        pid = start("./shop").pid
        trace = start(*command("-n shop --text --top 1", pid), log="log.txt")
        check = start(*command("-n shop --text --interval 30", pid), log="reports.txt")
        for _ in range(5):
            done = outcome(*command("leaks", pid), cwd=tmp_path)
            assert done.returncode == 3
            # If the heap changes while it is read, the report says that there may be more.
            if "there may be more" not in done.stdout:
                break
        assert without_numbers(done.stdout, str(tmp_path)) == without_numbers(lost, "/tmp/shop")
        found = wait_until(
            lambda: verdict_of((tmp_path / "log.txt").read_text()), patience_s=VERDICT_S
        )
        assert without_numbers(found, str(tmp_path)) == without_numbers(verdict, "/tmp/shop")
        assert "at=shop.c:7\n" in found
        trace.send_signal(signal.SIGINT)
        assert trace.wait(PATIENCE_S) == 0
        assert b"<title>" in (tmp_path / "shop.html").read_bytes()
        assert check.wait(VERDICT_S) == 3
