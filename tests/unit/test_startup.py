"""From the first moment on it is said what is being done, where somebody may be looking."""

import os
import sys
import threading

import pytest

from tests.commands import run
from tests.harness import PATIENCE_S
from tracelloc import text
from tracelloc.command.reports import first_wait_s
from tracelloc.startup import StatusLine
from tracelloc.text import Progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_line(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    line = StatusLine()
    line.note("too early")
    line.begin("attaching")
    line.note("compiling")
    line.end()
    line.end()
    line.note("too late")
    texts = "\rtracelloc: attaching…\x1b[K", "\rtracelloc: compiling…\x1b[K", "\r\x1b[K"
    captured = capsys.readouterr()
    assert captured.err == ("".join(texts) if is_terminal else "")
    assert captured.out == ""
    line.begin("attaching", frame=True)
    assert line.has_frame is is_terminal
    line.end()
    drawn = capsys.readouterr().err
    assert drawn.startswith("\x1b[?1049h") == drawn.endswith("\x1b[?1049l") == is_terminal


@pytest.mark.parametrize(
    ("interval_s", "gone_s", "wait_s"),
    [(1.0, 0.4, 0.6), (1.0, 3.0, 0.25), (60.0, 2.0, 58.0), (0.01, 1.0, 0.0025)],
)
def test_the_first_interval(interval_s: float, gone_s: float, wait_s: float) -> None:
    assert first_wait_s(interval_s, gone_s) == pytest.approx(wait_s)


@pytest.mark.parametrize("given", [None, "3"])
def test_numpy_has_no_threads_and_programs_do_not_notice(given: str | None) -> None:
    program = (
        "import os, sys; from tracelloc.startup import import_numpy; import_numpy();"
        "print('numpy' in sys.modules, os.environ.get('OPENBLAS_NUM_THREADS'),"
        "len(os.listdir('/proc/self/task')))"
    )
    environment = {name: v for name, v in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if given is not None:
        environment["OPENBLAS_NUM_THREADS"] = given
    said = run(sys.executable, "-c", program, env=environment, timeout=PATIENCE_S)
    is_imported, variable, threads = said.split()
    assert (is_imported, variable) == (str(given is None), str(given))
    if given is None:
        assert threads == "1"


def test_quick_things_are_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.note("reading")
    progress.note("writing")
    progress.end()
    assert capsys.readouterr().err == ""


def test_slow_things(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PATIENCE_S", 0.0)
    shown = threading.Event()
    show = Progress._show

    def told(self: Progress) -> None:
        show(self)
        shown.set()

    monkeypatch.setattr(Progress, "_show", told)
    progress = Progress()
    progress.note("reading")
    assert shown.wait(PATIENCE_S)
    progress.note("writing")
    progress.end()
    assert capsys.readouterr().err == "tracelloc: reading…\ntracelloc: writing…\n"
