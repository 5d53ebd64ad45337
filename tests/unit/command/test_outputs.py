"""Files: whole or not at all, private, in the right hands."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import mounted
from tests.harness import may_mount, refused
from tracelloc.command.outputs import open_report
from tracelloc.errors import TracellocError
from tracelloc.show.export import FOLDED, exporter_for
from tracelloc.show.export.outputfile import OutputFile, open_special


def output_of(path: str) -> OutputFile:
    return OutputFile(Path(path), exporter_for(path))


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if not may_mount():
        refused("mounting is refused")
    with mounted(tmp_path / "disk", "size=64k") as place:
        yield place


def test_what_fails_leaves_the_old_file(full_disk: Path, tmp_path: Path) -> None:
    output = output_of(str(full_disk / "a.json"))
    output.write([b"old"])
    with pytest.raises(TracellocError) as caught:
        output.write(bytes(4096) for _ in range(100))
    assert str(caught.value) == (
        f"{output.path} could not be written: No space left on device; "
        "the file that was there is unchanged"
    )
    assert output.path.read_bytes() == b"old"
    assert names(full_disk) == ["a.json"]
    fresh = output_of(str(full_disk / "b.json"))
    with pytest.raises(TracellocError, match=r"No space left on device$"):
        fresh.write(bytes(4096) for _ in range(100))
    assert names(full_disk) == ["a.json"]
    output = output_of(str(tmp_path / "a.json"))
    output.write([b"old"])

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write(pieces())
    assert output.path.read_bytes() == b"old"
    assert sorted(names(tmp_path)) == ["a.json", "disk"]


def test_placeholders_devices_and_pipes(tmp_path: Path) -> None:
    name = str(output_of("/tmp/%p/a-%t-%%p-%x.json").at(42, 0.0).path)
    assert name.startswith("/tmp/42/a-19")
    assert name.endswith("-%p-%x.json")
    assert len(name.split("-")[1]) == 8
    output = OutputFile(Path("/dev/null"), FOLDED)
    output.check()
    output.write([b"x"])
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    pipe = tmp_path / "pipe.folded"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody reads from this pipe"):
        open_special(pipe, patience_s=0.1)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="its reader does not read"):  # noqa: SIM117
            with open_special(pipe, patience_s=0.1) as stream:
                stream.write(bytes(1 << 20))
        assert len(os.read(reader, 1 << 20)) == 1 << 16
        with open_special(pipe) as stream:
            stream.write(b"whole")
        assert os.read(reader, 1 << 20) == b"whole"
    finally:
        os.close(reader)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of other users")
def test_a_pipe_of_somebody_else(tmp_path: Path) -> None:
    """It would get what only its owner is to see."""
    pipe = tmp_path / "pipe.folded"
    os.mkfifo(pipe, 0o666)
    os.chown(pipe, 65534, 65534)
    with pytest.raises(TracellocError, match="this pipe belongs to another user"):
        output_of(str(pipe)).check()
    with pytest.raises(TracellocError, match="this pipe belongs to another user"):
        open_report(pipe)
    os.chown(pipe, 0, 0)
    output_of(str(pipe)).check()
