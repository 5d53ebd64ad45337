"""Functions that are described in other files (.dwo, .dwp): asked of llvm-symbolizer."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run
from tests.harness import TARGETS, open_files
from tests.unit.references import addresses_in_functions, llvm, open_elf, places, unlike
from tracelloc.files.dwarf import sourcelines
from tracelloc.files.dwarf.sourcelines import (
    SourceLines,
    SymbolizerPipe,
    find_symbolizer,
    reachable_path,
)
from tracelloc.system.confined import OWN_USERS, start_confined

ADDRESSES = 600


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory that user nobody can look into, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="split-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def place(directory: Path) -> Path:
    path = Path(tempfile.mkdtemp(dir=directory))
    path.chmod(0o755)
    return path


def split_cpp(directory: Path, name: str, *more: str) -> Path:
    """A C++ program with its .dwo beside it, named relative to its directory."""
    flags = "-std=c++20", "-O2", "-g", "-gsplit-dwarf"
    run("g++", *flags, *more, TARGETS / "shelves.cpp", "-o", name, cwd=directory)
    return directory / name


@pytest.fixture(scope="module")
def cpp(directory: Path) -> Path:
    return split_cpp(directory, "shelves")


@pytest.fixture(scope="module")
def rust(directory: Path) -> Path:
    """A Rust program with its .dwp."""
    flags = "--edition=2021", "-g", "-Copt-level=3", "-Csplit-debuginfo=packed"
    run("rustc", *flags, TARGETS / "chain.rs", "-o", "chain", cwd=directory)
    return directory / "chain"


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("kind", ["cpp", pytest.param("rust", marks=pytest.mark.long)])
def test_inlined_functions(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    addresses = addresses_in_functions(path, ADDRESSES)
    before = children()
    lines = SourceLines(open_elf(path))
    mine = lines.chains(addresses)
    wrong = unlike(mine, llvm(path, addresses))
    assert len(wrong) <= 0.001 * ADDRESSES, wrong[:3]
    assert sum(len(chain) > 1 for chain in mine) > 0.3 * ADDRESSES
    assert lines.reason is None
    (pid,) = children() - before
    inherited = open_files(int(pid))
    assert {name for name in inherited if not name.startswith(("pipe:", "/dev/null"))} <= {
        str(path), f"{path}.dwp", f"{path}-shelves.dwo"
    }  # fmt: skip
    status = Path(f"/proc/{pid}/status").read_text()
    lost = [f"Cap{name}:\t{0:016x}" for name in ("Prm", "Eff", "Amb")]
    own = f"\t{OWN_USERS + os.getpid()}" * 4
    ids = [f"{kind}:{own}" for kind in ("Uid", "Gid")]
    # Only root has users to choose from.
    ids = [] if os.geteuid() else [*ids, "Groups:\t "]
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", *lost, *ids):
        assert f"\n{line}\n" in status
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max file size             0                    0 " in limits
    lines.close()
    assert children() == before
    # It can be asked again.
    assert lines.chains(addresses[:5]) == mine[:5]
    lines.close()


def test_ends_with_its_owner(cpp: Path) -> None:
    before = children()
    lines = SourceLines(open_elf(cpp))
    lines.chains(addresses_in_functions(cpp, 50))
    assert len(children() - before) == 1
    del lines
    assert children() == before


def test_without_the_other_file(cpp: Path, tmp_path: Path) -> None:
    """Lines are still there, the reason says what is not; nothing is started in vain."""
    path = split_cpp(tmp_path, "alone")
    (other,) = tmp_path.glob("*.dwo")
    other.unlink()
    addresses = addresses_in_functions(path, ADDRESSES)
    before = children()
    lines = SourceLines(open_elf(path))
    mine = lines.chains(addresses)
    assert [places(a)[:1] for a in mine] == [places(b)[:1] for b in llvm(path, addresses)]
    assert lines.reason == f"inlined functions are described in {other}, which is missing"
    assert all(len(chain) <= 1 for chain in mine)
    assert children() == before


def test_a_directory_that_no_system_call_takes(tmp_path: Path) -> None:
    path = split_cpp(tmp_path, "long", f"-fdebug-prefix-map={tmp_path}=/{'d' * 5000}")
    lines = SourceLines(open_elf(path))
    lines.chains(addresses_in_functions(path, 5))
    assert "missing" in lines.reason


def test_without_the_program(cpp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = addresses_in_functions(cpp, ADDRESSES)
    monkeypatch.setenv("PATH", "/nonexistent")
    lines = SourceLines(open_elf(cpp))
    assert sum(chain != () for chain in lines.chains(addresses)) > 0.9 * ADDRESSES
    assert lines.reason.endswith("install llvm-symbolizer")


def test_newest_of_those_with_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (11, 14, 19):
        path = tmp_path / f"llvm-symbolizer-{version}"
        path.write_text("")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_symbolizer() == str(tmp_path / "llvm-symbolizer-19")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 1000", "no answer in 1 seconds"),
        ("exit 1", "it ended"),
        ("echo not JSON; exec cat >/dev/null", "llvm-symbolizer failed"),
        ("echo '{\"Symbol\": [{}]}'; exec cat >/dev/null", "llvm-symbolizer failed"),
        ("exec yes ''", "llvm-symbolizer failed"),
        ("exec tr '\\n' ' ' 3<&0 </dev/zero", "its answer has no end"),
    ],
    ids=["silent", "ends", "garbage", "incomplete", "empty", "endless line"],
)
def test_one_that_fails(
    cpp: Path, place: Path, script: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once is enough: killed, said why, not tried again."""
    command = place / "llvm-symbolizer"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    started: list[object] = []

    def start(*words: Any, **more: Any) -> Any:
        started.append(words)
        return start_confined(*words, **more)

    monkeypatch.setattr(sourcelines, "start_confined", start)
    before = children()
    pipe = SymbolizerPipe(open_elf(cpp), str(command), 1 if "sleep" in script else 30)
    assert pipe.chains([0x1000] * 300) == [()] * 300
    assert reason in pipe.reason
    assert children() == before
    assert pipe.chains([0x1000]) == [()]
    assert len(started) == 1


def test_files_that_others_may_not_read(cpp: Path, place: Path) -> None:
    path = split_cpp(place, "secret")
    (other,) = place.glob("*.dwo")
    other.chmod(0o600)
    lines = SourceLines(open_elf(path))
    lines.chains(addresses_in_functions(path, 50))
    reason = f"inlined functions are described in {other}, which other users may not read"
    assert lines.reason == reason


def test_path_of_a_file_that_lost_its_name(cpp: Path, place: Path) -> None:
    """A deleted file, or one with an odd name, is reached through our descriptor."""
    path = place / "copy"
    path.write_bytes(cpp.read_bytes())
    elf = open_elf(path)
    assert reachable_path(elf) == str(path)
    path.unlink()
    ours = f"/proc/self/fd/{elf.descriptor()}"
    assert reachable_path(elf) == ours
    path.write_bytes(b"another one")
    assert reachable_path(elf) == ours
    odd = place / 'odd" name\n'
    odd.write_bytes(cpp.read_bytes())
    elf = open_elf(odd)
    assert reachable_path(elf) == f"/proc/self/fd/{elf.descriptor()}"
    addresses = addresses_in_functions(cpp, 100)
    lines = SourceLines(elf)
    assert lines.chains(addresses) == SourceLines(open_elf(cpp)).chains(addresses)
    lines.close()
