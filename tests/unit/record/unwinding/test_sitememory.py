"""Where stacks came by in large files, kept on disk."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tracelloc.record.unwinding import rowsahead
from tracelloc.record.unwinding.rowsahead import SiteMemory
from tracelloc.system.invoker import Invoker

ID = "00ff" * 10


@pytest.fixture
def me(tmp_path: Path) -> Invoker:
    return Invoker(os.geteuid(), os.getegid(), tmp_path / "config", tmp_path / "cache")


def sites(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.uint64)


def path_of(me: Invoker, build_id: str = ID) -> Path:
    return me.cache / "tracelloc" / "call-sites" / f"{build_id}.sites"


def test_what_is_remembered_adds_up(me: Invoker) -> None:
    memory = SiteMemory(me)
    for no_id in (None, "", "../../etc/passwd", "0" * 200, "AB" * 10):
        memory.remember(no_id, sites(1))
        assert memory.recall(no_id).tolist() == []
    assert not me.cache.exists()
    assert memory.recall(ID).tolist() == []
    memory.remember(ID, sites(7, 3, 1 << 63, 3))
    memory.remember(ID, sites(5))
    memory.remember(ID, sites())
    assert SiteMemory(me).recall(ID).tolist() == [3, 5, 7, 1 << 63]
    assert memory.recall("ee" * 20).tolist() == []
    assert (path_of(me).stat().st_mode & 0o777, path_of(me).stat().st_size) == (0o600, 16 + 32)


def test_newest_stay_when_there_are_too_many(me: Invoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowsahead, "_MOST_KEPT", 4)
    memory = SiteMemory(me)
    memory.remember(ID, sites(10, 20, 30))
    memory.remember(ID, sites(1, 2, 3))
    assert memory.recall(ID).tolist() == [1, 2, 3, 10]


def test_least_lately_used_files_go(me: Invoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowsahead, "_MOST_FILES", 3)
    memory = SiteMemory(me)
    for number in range(3):
        memory.remember(f"{number:08x}", sites(1))
        os.utime(path_of(me, f"{number:08x}"), (number, number))
    assert memory.recall("00000000").tolist() == [1]  # which is a use
    memory.remember("00000003", sites(1))
    left = sorted(path.stem for path in path_of(me).parent.iterdir())
    assert left == ["00000000", "00000002", "00000003"]


def test_what_others_could_have_written_is_not_believed(me: Invoker) -> None:
    memory = SiteMemory(me)
    memory.remember(ID, sites(1))
    path = path_of(me)
    path.chmod(0o666)
    assert memory.recall(ID).tolist() == []
    path.chmod(0o600)
    assert memory.recall(ID).tolist() == [1]
    path.parent.chmod(0o777)
    assert memory.recall(ID).tolist() == []


def test_damage_is_noticed(me: Invoker) -> None:
    memory = SiteMemory(me)
    memory.remember(ID, sites(1, 2, 3))
    whole = path_of(me).read_bytes()
    for content in (b"", whole[:-1], whole[:-8], whole + bytes(8), bytes(16) + whole[16:], b"x"):
        path_of(me).write_bytes(content)
        assert memory.recall(ID).tolist() == []
    memory.remember(ID, sites(9))
    assert memory.recall(ID).tolist() == [9]
    shutil.rmtree(me.cache)
    me.cache.write_text("not a directory")
    memory.remember(ID, sites(1))
    assert memory.recall(ID).tolist() == []
