"""Which mapped files stay for as long as the program runs."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.harness import LIBRARIES, PRELOADED
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY

ZLIB = str(LIBRARIES / "libz.so.1")  # A link to the file that is mapped


@contextmanager
def preloading(
    library: str, *command: str
) -> Iterator[tuple[subprocess.Popen[bytes], AddressSpace]]:
    pipe = subprocess.PIPE
    environment = {"LD_PRELOAD": library}
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment) as process,
        closing(AddressSpace(Process(process.pid))) as space,
    ):
        yield process, space


def test_what_was_preloaded_is_known_after_the_end() -> None:
    """Stacks of a program that was short are finished when it is no more."""
    with preloading(ZLIB, "/usr/bin/cat") as (process, space):
        process.stdin.write(b"\n")
        assert process.stdout.readline() == b"\n"
        space.refresh()
        before = space.permanent_files()
        process.communicate()
        paths = {m.path for m in space.mappings if m.executable and m.file_id in before}
        assert {path.rpartition("/")[2].partition(".so")[0] for path in paths} >= {
            "cat", "libz", "libc",
        }  # fmt: skip
        assert space.permanent_files() == before


def test_what_was_preloaded_stays_when_the_environment_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs may take it out, for what they execute."""
    script = (
        "import mmap; print(flush=True); input(); kept = mmap.mmap(-1, 1 << 20); "
        "print(flush=True); input()"
    )
    with preloading(str(PRELOADED), sys.executable, "-c", script) as (process, space):
        assert process.stdout.readline() == b"\n"
        space.refresh()
        (ours,) = {m.file_id for m in space.mappings if m.path == str(LIBRARY)}
        assert ours in space.permanent_files()
        monkeypatch.setattr(Process, "preloaded", lambda _: [])
        process.stdin.write(b"\n")
        assert process.stdout.readline() == b"\n"
        before = space.generation
        space.refresh()
        assert space.generation > before
        assert ours in space.permanent_files()
        space.begin_image(keep_modules=False)
        space.refresh()
        assert ours not in space.permanent_files()
        process.communicate(b"\n")
