"""Which mapped files stay for as long as the program runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness import LIBRARIES, PRELOADED
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY

ZLIB = str(LIBRARIES / "libz.so.1")
"""A link to the file that is mapped."""


def test_what_was_preloaded_is_known_after_the_end() -> None:
    """Stacks of a program that was short are finished when it is no more."""
    with subprocess.Popen(
        ["/usr/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"LD_PRELOAD": ZLIB},
    ) as process:  # fmt: skip
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"
        space = AddressSpace(Process(process.pid))
        try:
            space.refresh()
            before = space.permanent_files()
            process.communicate()
            paths = {m.path for m in space.mappings if m.executable and m.file_id in before}
            assert {path.rpartition("/")[2].partition(".so")[0] for path in paths} >= {
                "cat", "libz", "libc",
            }  # fmt: skip
            assert space.permanent_files() == before
        finally:
            space.close()


def test_what_was_preloaded_stays_when_the_environment_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs may take it out, for what they execute."""
    script = (
        "import mmap; print(flush=True); input(); kept = mmap.mmap(-1, 1 << 20); "
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"LD_PRELOAD": str(PRELOADED)},
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"\n"
        space = AddressSpace(Process(process.pid))
        try:
            space.refresh()
            (ours,) = {m.file_id for m in space.mappings if m.path == str(LIBRARY)}
            assert ours in space.permanent_files()
            monkeypatch.setattr(Process, "preloaded", lambda _: [])
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"\n"
            before = space.generation
            space.refresh()
            assert space.generation > before
            assert ours in space.permanent_files()
            space.begin_image(keep_modules=False)
            space.refresh()
            assert ours not in space.permanent_files()
            process.communicate(b"\n")
        finally:
            space.close()
