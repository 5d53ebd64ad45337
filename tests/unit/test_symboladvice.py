"""What would add the names and lines that a stack lacks."""

from __future__ import annotations

import time
from pathlib import Path

from tests.unit.leaks import watched
from tests.unit.reports import text_report
from tracelloc.model.frames import Frame
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.packageadvice import SymbolAdvice
from tracelloc.show.presentation.symboladvice import advice_text, lacking_files

APP, LIBRARY = "/usr/bin/redis-server", "/usr/lib/libfoo.so.1"


def frame(symbol: str | None, module: str, file: str | None = None) -> Frame:
    return Frame(16, symbol, symbol, 4, 16, module, 16, file=file, line=None if file is None else 7)


def stack(*frames: Frame) -> NamedStack:
    return NamedStack(list(frames), [False] * len(frames))


def test_files_of_frames_without_lines() -> None:
    found = lacking_files(
        stack(
            frame("f", APP), frame(None, LIBRARY), frame(None, APP), frame("m", "/opt/own", "a.c"),
            frame(None, "/usr/lib/libc.so.6"), frame(None, "[vdso]"),
        )
    )  # fmt: skip
    assert found == {APP: True, LIBRARY: True}
    assert lacking_files(stack(frame("main", APP, "server.c"))) == {}


def test_words() -> None:
    assert advice_text(APP, nameless=False, hint="apt install x-dbgsym") == (
        "no source lines of redis-server: apt install x-dbgsym"
    )
    assert advice_text(APP, nameless=True, hint=None).endswith(
        "no names or source lines of redis-server: build it with -g, don't strip it"
    )


def test_packages_are_looked_up_in_the_background(tmp_path: Path) -> None:
    lists = tmp_path / "var/lib/dpkg/info"
    lists.mkdir(parents=True)
    (lists / "redis-tools.list").write_text(f"/usr/bin\n{APP}\n")
    advice, end_s = SymbolAdvice(), time.monotonic() + 20
    while (found := advice.advice_for(1, tmp_path, stack(frame("f", APP)))) is None:
        assert time.monotonic() < end_s
        time.sleep(0.001)
    assert found.startswith("no source lines of redis-server: apt install redis-tools-dbgsym")
    assert advice.advice_for(1, tmp_path, stack(frame("f", APP, "a.c"))) is None


def test_reports_say_it_once_per_file() -> None:
    found = watched(400.0)
    lines = list(text_report(found.snapshot(), found.namer, 2))
    assert [line for line in lines if "no source lines" in line] == [
        "==> no source lines of app: compile it with -g"
    ]
