"""Usable sizes: formulas against the real libraries, chunks against a real heap."""

import ctypes
import mmap
import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.harness import LIBRARIES, Targets
from tests.unit.events import A, table_of
from tests.unit.show.presentation.test_views import snapshot_of
from tracelloc.files.elf import ElfFile
from tracelloc.heap.usable import formula_for, has_sizes, main_library, usable_of
from tracelloc.model.blocks import Blocks, ReadSizes, UsableSizes
from tracelloc.model.figures import U64
from tracelloc.model.process import FoundLibrary, MainLibrary, MallocLibrary
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.mallocs.discovery import library_of
from tracelloc.record.mallocs.families import LIBC, MAPPINGS, OPERATORS, Family, jemalloc
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.processfacts import UsableSizeReader, read_chunks, read_words

FILES = {
    MallocLibrary.GLIBC: "libc.so.6",
    MallocLibrary.JEMALLOC: "libjemalloc.so.2",
    MallocLibrary.TCMALLOC: "libtcmalloc_minimal.so.4",
    MallocLibrary.MIMALLOC: "libmimalloc.so.*",
}
OWN = AddressSpace(Process(os.getpid()))
OURS = RemoteMemory(OWN.process)
FAR_S = time.monotonic() + 3600
LIBC_FILE = FoundLibrary("malloc", "/lib/libc.so.6", ("malloc",), (), MallocLibrary.GLIBC)


def path_of(library: MallocLibrary) -> Path:
    return min(LIBRARIES.glob(FILES[library]))


def sizes() -> U64:
    """Those that ``tests/targets/usable.c`` asks for."""
    asked = list(range(1, 70001))
    size = 70001
    while size <= 80 << 20:
        asked.append(size)
        size += size // 97
    return np.array(asked, np.uint64)


def blocks_of(address: list[int], size: list[int], birth_ns: int = 1) -> Blocks:
    ones = np.ones(len(address), np.uint32)
    births = np.full(len(address), birth_ns, np.uint64)
    return Blocks(np.array(address, np.uint64), np.array(size, np.uint64), births, ones, ones)


@pytest.mark.parametrize("library", FILES)
def test_formulas(targets: Targets, tmp_path: Path, library: MallocLibrary) -> None:
    """Whatever size is known is what the library itself says, to the byte; whose malloc it has."""
    path = str(path_of(library))
    with closing(ElfFile(os.open(path, os.O_RDONLY))) as elf:
        assert library_of(LIBC, path, elf) is library
        assert library_of(MAPPINGS, path, elf) is None
        own = Family("pool", {}, (), by_user=True)
        assert library_of(own, path, elf) is MallocLibrary.OTHER
    preload = "" if library is MallocLibrary.GLIBC else path
    target = targets.c("usable", env={**os.environ, "LD_PRELOAD": preload})
    assert target.ask(f"table {tmp_path / 'table'}") == "done"
    truth = np.fromfile(tmp_path / "table", np.uint64)
    asked = sizes()
    usable, known = formula_for(MainLibrary(library, path, ()))(asked)
    assert len(truth) == len(asked)
    np.testing.assert_array_equal(usable[known], truth[known])
    assert known[:70000].all()
    if library in (MallocLibrary.JEMALLOC, MallocLibrary.TCMALLOC):
        assert known.all()


def test_sizes_that_are_not_known() -> None:
    for library, file in (
        (MallocLibrary.MUSL, "/lib/ld-musl-x86_64.so.1"),
        (MallocLibrary.OTHER, "/opt/app"),
        (MallocLibrary.TCMALLOC, "/opt/app"),
        (MallocLibrary.TCMALLOC, "/lib/libtcmalloc_minimal_debug.so.4"),
        (MallocLibrary.MIMALLOC, "/lib/libmimalloc-secure.so.2.0"),
    ):
        main = MainLibrary(library, file, ())
        assert formula_for(main) is None
        found = UsableSizes(main, ReadSizes())
        assert not has_sizes(found)
        assert not usable_of(found, blocks_of([16], [10])).known.any()


def test_main_allocator() -> None:
    je = FoundLibrary("malloc", "/lib/libjemalloc.so.2", (), (), MallocLibrary.JEMALLOC)
    own = FoundLibrary("jemalloc", "/opt/app", (), (), MallocLibrary.JEMALLOC)
    news = FoundLibrary("operator new", "/lib/libstdc++.so.6", (), ())
    assert main_library([news]) is None
    assert main_library([news, LIBC_FILE]) == MainLibrary(MallocLibrary.GLIBC, LIBC_FILE.file, ())
    assert main_library([LIBC_FILE, je]) == MainLibrary(MallocLibrary.JEMALLOC, je.file, ())
    loader = FoundLibrary("malloc", "/lib/ld-linux-x86-64.so.2", (), (), MallocLibrary.OTHER)
    assert main_library([loader, LIBC_FILE]) == main_library([LIBC_FILE])
    assert main_library([own, LIBC_FILE]) == MainLibrary(
        MallocLibrary.GLIBC, LIBC_FILE.file, ("jemalloc in app",)
    )
    path = str(LIBRARIES / "libstdc++.so.6")
    with closing(ElfFile(os.open(path, os.O_RDONLY))) as elf:
        assert library_of(OPERATORS, path, elf) is None
        assert library_of(jemalloc("je_"), path, elf) is MallocLibrary.JEMALLOC


def test_words_of_a_process() -> None:
    """Near and far ones, at pages' ends, with a page between them gone."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 64 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    everything = np.frombuffer(memory, np.uint64)
    everything[:] = np.arange(len(everything))
    address = np.arange(start, start + 64 * page, page // 512, np.uint64)
    rng = np.random.default_rng(5)
    for share in (1.0, 0.1, 0.002):
        some = np.sort(rng.choice(address, round(len(address) * share), replace=False))
        words, was_read = read_words(OURS, some, FAR_S)
        assert was_read.all()
        np.testing.assert_array_equal(words, (some - np.uint64(start)) // np.uint64(8))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for gone in (0, 7, 8, 63):
        assert libc.mprotect(start + gone * page, page, 0) == 0
    words, was_read = read_words(OURS, address, FAR_S)
    number = (address - np.uint64(start)) // np.uint64(page)
    np.testing.assert_array_equal(was_read, ~np.isin(number, [0, 7, 8, 63]))
    expected = (address - np.uint64(start)) // np.uint64(8)
    np.testing.assert_array_equal(words[was_read], expected[was_read])
    assert libc.mprotect(start, 64 * page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    assert not read_words(OURS, address, 0.0)[1].any()
    # Larger than any process id.
    assert not read_words(RemoteMemory(Process(1 << 22)), address, FAR_S)[1].any()


MAPPED = -(-200_016 // mmap.PAGESIZE) * mmap.PAGESIZE


@pytest.mark.parametrize(
    ("request_bytes", "word", "usable_bytes"),
    [
        (24, 0x21, 24),
        (0, 0x20, 24),
        (24, 0x41, 56),
        # Too small or too large for the request, not a size, nothing.
        (25, 0x21, None),
        (24, 0x51, None),
        (24, 0x29, None),
        (24, 0xFFFFFFFFFFFFFFF1, None),
        # A mapping ends where a page does; it begins 16 bytes before the block.
        (200_000, MAPPED | 2, MAPPED - 16),
        (200_000, MAPPED + mmap.PAGESIZE | 2, MAPPED + mmap.PAGESIZE - 16),
        (200_000, MAPPED | 0x12, None),
        (200_000, MAPPED - mmap.PAGESIZE | 2, None),
        (200_000, 0x7FFFFFFFF002, None),
    ],
)
def test_chunks(request_bytes: int, word: int, usable_bytes: int | None) -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[8:16] = word.to_bytes(8, "little")
    block = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 16
    asked = np.array([block], np.uint64), np.array([request_bytes], np.uint64)
    ((size_bytes,), (known,)) = read_chunks(OURS, *asked, FAR_S)
    assert (int(size_bytes) if known else None) == usable_bytes


def test_what_is_read_once_or_not_known() -> None:
    """Old ones keep what was read; young ones and others at the same place do not."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[8:16] = (0x21).to_bytes(8, "little")
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 16
    measuring, second = UsableSizeReader(OWN), 10**9

    def usable(birth_ns: int, now_ns: int) -> int:
        blocks = blocks_of([address], [20], birth_ns)
        measured = measuring.measure(blocks, now_ns, [LIBC_FILE])
        size_bytes, known, read = usable_of(measured, blocks)
        assert known.all()
        assert read.all()
        return int(size_bytes[0])

    assert usable(5 * second, 5 * second) == 24
    memory[8:16] = (0x31).to_bytes(8, "little")
    assert usable(5 * second, 6 * second) == 40
    memory[8:16] = (0x41).to_bytes(8, "little")
    assert usable(5 * second, 7 * second) == 40
    assert usable(6 * second, 7 * second) == 56
    # Unless it may be another allocator's; a mapping's size is not told by the request.
    blocks = blocks_of([16, 32, 48], [20, 200_000, 40])
    usable = usable_of(UsableSizeReader(OWN).measure(blocks, 1, [LIBC_FILE]), blocks)
    assert usable.known.tolist() == [True, False, True]
    assert usable.size_bytes[usable.known].tolist() == [24, 40]
    assert not usable.read.any()
    own = FoundLibrary("pool", "/opt/app", (), (), MallocLibrary.OTHER)
    mixed = UsableSizeReader(OWN).measure(blocks, 1, [LIBC_FILE, own])
    assert not usable_of(mixed, blocks).known.any()
    je = FoundLibrary("malloc", "/lib/libjemalloc.so.2", (), (), MallocLibrary.JEMALLOC)
    usual = UsableSizeReader(OWN).measure(blocks_of([8, 32, 48], [8, 24, 40]), 1, [je])
    finer = UsableSizeReader(OWN).measure(blocks_of([8, 24, 48], [8, 24, 40]), 1, [je])
    assert has_sizes(usual)
    assert not has_sizes(finer)
    assert not usable_of(finer, blocks_of([8], [8])).known.any()


def test_allocators_of_an_earlier_program_do_not_count() -> None:
    """Those that are mapped do, or, if that is not known, all."""
    libc = replace(LIBC_FILE, file=str(path_of(MallocLibrary.GLIBC).resolve()))
    gone = FoundLibrary("malloc", "/opt/gone/libjemalloc.so.2", (), (), MallocLibrary.JEMALLOC)
    table = table_of([(A, 0x1000, 100, 1, 1)])
    snapshot = replace(
        snapshot_of(table, wanted=SnapshotRequest(blocks=True)), allocators=(gone, libc)
    )
    space = AddressSpace(Process(os.getpid()))

    def library() -> MallocLibrary:
        return UsableSizeReader(space).measured(snapshot).usable.main.library

    assert library() is MallocLibrary.JEMALLOC
    space.refresh()
    try:
        assert library() is MallocLibrary.GLIBC
    finally:
        space.close()
