"""Heaps of other Debian releases' C libraries: those of old servers, and the newest."""

import json
import os
from pathlib import Path

import pytest

from tests import distributions
from tests.distributions import RELEASES
from tests.harness import Builder, Target, Targets, run_tracelloc
from tests.integration.test_heapwalk import check_tcmalloc, check_to_the_byte, check_trim, heap_of
from tests.integration.test_leaks_now import LOST, await_pauses, check_lost, search

pytestmark = [pytest.mark.bpf, pytest.mark.nightly]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("words", [(), ("sbrk",)], ids=["own", "foreign-sbrk"])
def test_heap(builder: Builder, targets: Targets, release: str, words: tuple[str, ...]) -> None:
    """To the byte, and what malloc_trim(0) would return."""
    program = distributions.build(builder, "heapusage")
    target = targets.start(*distributions.command(release, program), *words)
    check_to_the_byte(target)
    check_trim(target)


@pytest.mark.parametrize("release", RELEASES)
def test_leaks(builder: Builder, targets: Targets, release: str) -> None:
    program = distributions.build(builder, "lostheap")
    check_lost(targets.start(*distributions.command(release, program)))


@pytest.mark.parametrize("release", [None, "trixie", "sid"])
def test_musl(builder: Builder, targets: Targets, release: str | None) -> None:
    """Every block that the program has by its own books, and no other."""
    program = builder.c("books", "-DNO_PVALLOC", compiler="musl-gcc")
    loader = [distributions.file_of(release, "musl", "libc.so")] if release else []
    target = targets.start(*loader, program, 4, 20_000, 5, 1500)
    for _ in range(3):
        books = json.loads(target.ask("run"))
        heap = heap_of(target)
        (arena,) = heap["arenas"]
        assert arena["library"] == "musl"
        assert arena["in_use_blocks"] == sum(count for count, _ in books.values())
        assert (heap["coverage"], heap["notes"]) == (1.0, [])


JEMALLOC = "libjemalloc2", "libjemalloc.so.2"


def preloaded(targets: Targets, name: str, *of_release: str) -> Target:
    """A program with a library, and the newest C library, which all these can do with."""
    library = distributions.file_of(*of_release).resolve()
    command = distributions.command("sid", distributions.build(targets.builder, name))
    target = targets.start(*command, env=os.environ | {"LD_PRELOAD": str(library)})
    assert f"/{library.name}" in Path(f"/proc/{target.pid}/maps").read_text()
    return target


@pytest.mark.parametrize("release", RELEASES)
def test_jemalloc(targets: Targets, release: str) -> None:
    """Versions 5.2.1 to 5.3.1, page maps for 48 and 57 bits, against jemalloc's own sum."""
    target = preloaded(targets, "heapusage", release, *JEMALLOC)
    for line, lost in (("info", 0), ("drop", 7500)):
        allocated = int(target.ask(line))
        heap = heap_of(target)
        (arena,) = (arena for arena in heap["arenas"] if arena["library"] == "jemalloc")
        assert arena["in_use_bytes"] + arena["cached_bytes"] == allocated
        assert 0 <= arena["in_use_blocks"] - (20_008 - lost) < 40
        assert (heap["notes"], arena["unseen"]) == ([], [])


@pytest.mark.parametrize("release", ["bullseye", "trixie", "sid"])
def test_leaks_with_jemalloc(targets: Targets, release: str) -> None:
    target = preloaded(targets, "lostheap", release, *JEMALLOC)
    await_pauses(target.pid, 1)
    found = search(target.pid)
    # Its size classes are others, so some groups are one here.
    assert {(group["shape"], group["class"]) for group in found["groups"]} == {
        kind[:2] for kind in LOST
    }
    total = sum(wanted[3] for wanted in LOST.values())
    assert 0.998 * total <= found["lost_blocks"] <= total


def test_mimalloc(targets: Targets) -> None:
    """Version 3, against what the program keeps; version 2 is in the other tests."""
    target = preloaded(targets, "heapusage", "trixie", "libmimalloc3", "libmimalloc.so.3.?")
    for line, lost in (("info", 0), ("drop", 7500)):
        target.ask(line)
        heap = heap_of(target)
        (arena,) = (arena for arena in heap["arenas"] if arena["library"] == "mimalloc")
        assert 0 <= arena["in_use_blocks"] - (20_008 - lost) < 40
        assert (heap["coverage"], heap["notes"]) == (1.0, [])


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("package", ["libtcmalloc-minimal4", "libgoogle-perftools4"])
def test_tcmalloc(targets: Targets, release: str, package: str) -> None:
    """Without and with what tcmalloc needs to profile."""
    name = package if release in RELEASES[:2] else f"{package}t64"
    pattern = f"libtcmalloc{'_minimal' if 'minimal' in package else ''}.so.4"
    check_tcmalloc(preloaded(targets, "heapusage", release, name, pattern))


@pytest.mark.parametrize("flags", [("-s",), ("-s", "-no-pie")], ids=["pie", "fixed"])
def test_tcmalloc_in_a_stripped_program(targets: Targets, flags: tuple[str, ...]) -> None:
    library = distributions.file_of("bookworm", "libgoogle-perftools-dev", "libtcmalloc_minimal.a")
    linked = "-Wl,--whole-archive", str(library), "-Wl,--no-whole-archive"
    check_tcmalloc(targets.cpp("heapusage", flags=("-pthread", *flags, *linked)))


def test_others_are_refused_by_name(targets: Targets) -> None:
    target = preloaded(targets, "heapusage", "sid", "libmimalloc3", "libmimalloc.so.3.?")
    for command in "heap", "leaks":
        done = run_tracelloc(command, "-p", target.pid, status=1)
        # Beside a load, it may say before that it is at work.
        last = done.stderr.splitlines()[-1]
        assert "error: the heap of mimalloc (libmimalloc.so.3." in last
        assert "can't be walked" in last
