"""Heaps of other Debian releases' C libraries: those of old servers, and the newest."""

from __future__ import annotations

import json

import pytest

from tests import distributions
from tests.distributions import RELEASES
from tests.harness import Builder, Target
from tests.integration.test_heapwalk import check_to_the_byte, check_trim, heap_of
from tests.integration.test_leaks_now import check_lost

pytestmark = pytest.mark.bpf


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("words", [(), ("sbrk",)], ids=["own", "foreign-sbrk"])
def test_heap(
    builder: Builder, targets: list[Target], release: str, words: tuple[str, ...]
) -> None:
    """To the byte, and what malloc_trim(0) would return."""
    program = distributions.build(builder, "heapusage")
    target = Target([*distributions.command(release, program), *words])
    targets.append(target)
    check_to_the_byte(target)
    check_trim(target)


@pytest.mark.parametrize("release", RELEASES)
def test_leaks(builder: Builder, targets: list[Target], release: str) -> None:
    program = distributions.build(builder, "lostheap")
    target = Target(distributions.command(release, program))
    targets.append(target)
    check_lost(target)


@pytest.mark.parametrize("release", [None, "trixie", "sid"])
def test_musl(builder: Builder, targets: list[Target], release: str | None) -> None:
    """Every block that the program has by its own books, and no other."""
    program = builder.c("books", "-DNO_PVALLOC", compiler="musl-gcc")
    loader = [distributions.file_of(release, "musl", "libc.so")] if release else []
    target = Target([*loader, program, 4, 20_000, 5, 1500])
    targets.append(target)
    for _ in range(3):
        books = json.loads(target.ask("run"))
        heap = heap_of(target)
        (arena,) = heap["arenas"]
        assert arena["library"] == "musl"
        assert arena["in_use_blocks"] == sum(count for count, _ in books.values())
        assert (heap["coverage"], heap["notes"]) == (1.0, [])
