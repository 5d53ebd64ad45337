"""What takes long is said to, and only that."""

import threading

import pytest

from tests.harness import PATIENCE_S
from tracelloc import text
from tracelloc.text import Progress


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
