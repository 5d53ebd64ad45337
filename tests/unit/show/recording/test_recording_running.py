"""Recorders are found by viewers while they run, and by nobody else's word."""

import os
from pathlib import Path

import pytest

from tracelloc.record.process.procfs import Process
from tracelloc.show.recording import running
from tracelloc.show.recording.running import noted, recording_of

ME = Process(os.getpid())


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(running, "_OF_ROOT", tmp_path / "root")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    return tmp_path / ("root" if os.geteuid() == 0 else "user/tracelloc")


def test_a_recording_is_known_while_it_is_written(tmp_path: Path, directory: Path) -> None:
    assert recording_of(ME) is None
    with noted(ME, tmp_path / "a.rec"):
        assert recording_of(ME) == tmp_path / "a.rec"
        assert recording_of(Process(os.getppid())) is None
    assert recording_of(ME) is None
    assert list(directory.iterdir()) == []


def test_a_killed_recorder_is_not_believed(tmp_path: Path, directory: Path) -> None:
    directory.mkdir(parents=True)
    left = directory / f"{ME.pid}-{ME.start_ticks()}"
    left.write_text(str(tmp_path / "a.rec"))
    assert recording_of(ME) is None
    with noted(ME, tmp_path / "b.rec"):
        assert recording_of(ME) == tmp_path / "b.rec"
    if os.geteuid() == 0:
        with noted(ME, tmp_path / "b.rec"):
            os.chown(left, 12345, -1)
            assert recording_of(ME) is None, "another user's file"


def test_it_records_where_nothing_can_be_noted(tmp_path: Path, directory: Path) -> None:
    directory.parent.mkdir(exist_ok=True)
    directory.write_text("in the way")
    with noted(ME, tmp_path / "a.rec"):
        assert recording_of(ME) is None
