"""What a program that we start is given so that it preloads our library."""

import os
import struct
import tempfile
from pathlib import Path

import pytest

from tests.harness import Builder
from tracelloc.record.sources.preloaded.launching import (
    can_be_read,
    path_for_loaders,
    preloads,
    with_preloaded,
)

MARK = b"TRACELLOC_LAUNCH=1"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ([b"A=1"], [b"A=1", MARK, b"LD_PRELOAD=/own.so"]),
        (
            [b"LD_PRELOAD=x.so y.so", b"A=1"],
            [b"\1D_PRELOAD=x.so y.so", b"A=1", MARK, b"LD_PRELOAD=/own.so:x.so y.so"],
        ),
        (
            [b"LD_PRELOAD=x.so", b"LD_PRELOAD=y.so"],
            [b"\1D_PRELOAD=x.so", b"\1D_PRELOAD=y.so", MARK, b"LD_PRELOAD=/own.so:y.so"],
        ),
    ],
)
def test_environment(environment: list[bytes], expected: list[bytes]) -> None:
    assert with_preloaded(environment, b"/own.so") == expected


def test_libraries_that_loaders_would_complain_about(tmp_path: Path) -> None:
    library = tmp_path / "own.so"
    assert not can_be_read(bytes(library))
    library.touch()
    assert can_be_read(bytes(library))
    odd = tmp_path / "own library.so"
    odd.touch()
    assert not can_be_read(bytes(odd))
    assert not can_be_read(b"/" * 600)


@pytest.mark.parametrize("name", ["a directory", "a:directory", "directory"])
def test_paths_that_loaders_would_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """They have a link without separators, if one can be made."""
    library = tmp_path / name / "own.so"
    library.parent.mkdir()
    library.touch()
    path = path_for_loaders(library)
    assert path.samefile(library)
    assert path.name == library.name
    assert (path == library) == (name == "directory")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    assert path_for_loaders(library) == library


def test_programs(builder: Builder, tmp_path: Path) -> None:
    """Dynamic ones, and scripts that such a program interprets."""

    def does(path: Path) -> bool:
        return preloads(bytes(path))

    dynamic, static = builder.c("early"), builder.c("early", "-static")
    assert does(dynamic)
    assert not does(static)
    assert does(builder.c("early", compiler="musl-gcc"))
    script = tmp_path / "script"
    for line, expected in (
        (f"#! {dynamic} -x\n", True), (f"#!{static}", False), ("#!", False), ("#! \n", False),
        (f"#!{script}\n", False), ("\x7fELF", False), ("", False), ("x" * 300, False),
    ):  # fmt: skip
        script.write_text(line)
        assert does(script) == expected, line
    owned, content = tmp_path / "owned", dynamic.read_bytes()
    for written, mode, expected in (
        (content, 0o755, True), (content, 0o4755, False), (content[:70], 0o755, False),
        (content[:18] + bytes([183]) + content[19:], 0o755, False),  # of another machine
        (content, 0o755, True),
    ):  # fmt: skip
        owned.write_bytes(written)
        owned.chmod(mode)
        assert does(owned) == expected
    if os.geteuid() == 0:
        # cap_net_raw+ep (linux/capability.h, struct vfs_cap_data).
        os.setxattr(owned, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
        assert not does(owned)
    os.mkfifo(tmp_path / "pipe")
    assert not does(tmp_path / "pipe")
    assert not does(tmp_path)
    assert not does(tmp_path / "missing")
