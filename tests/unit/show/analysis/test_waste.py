"""Waste by size, by stack and in all, against plain sums; and as reports show it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.reports import json_report, text_report
from tests.unit.show.report.test_sections import NAMER, snapshot_of_sizes
from tracelloc.heap.usable import usable_of
from tracelloc.model.blocks import Blocks, ReadSizes, Usable, UsableSizes, weights
from tracelloc.model.process import MainLibrary, MallocLibrary
from tracelloc.show.analysis import histograms
from tracelloc.snapshots.snapshot import Snapshot

GLIBC = MainLibrary(MallocLibrary.GLIBC, "/lib/libc.so.6", ())


@pytest.fixture
def blocks() -> Blocks:
    rng = np.random.default_rng(3)
    n = 2000
    return Blocks(
        np.arange(1, n + 1, dtype=np.uint64) * np.uint64(4096),
        rng.integers(0, 300, n).astype(np.uint64),
        np.ones(n, np.uint64),
        rng.integers(0, 7, n).astype(np.uint32),
        np.ones(n, np.uint32),
    )


@pytest.fixture
def usable(blocks: Blocks) -> Usable:
    rng = np.random.default_rng(4)
    known = rng.random(len(blocks)) < 0.8
    size = blocks.size + rng.integers(0, 50, len(blocks)).astype(np.uint64)
    return Usable(np.where(known, size, np.uint64(0)), known, known & (blocks.stack > 3))


def expected(blocks: Blocks, usable: Usable, rows: np.ndarray) -> histograms.Waste:
    known = usable.known[rows]
    size, asked = usable.size_bytes[rows][known], blocks.size[rows][known]
    return histograms.Waste(int(size.sum()), int(size.sum() - asked.sum()), int((~known).sum()))


def test_sums(blocks: Blocks, usable: Usable) -> None:
    for bin_ in histograms.size_bins(blocks, None, usable):
        rows = np.flatnonzero((blocks.size >= bin_.low) & (blocks.size <= bin_.high))
        assert bin_.waste == expected(blocks, usable, rows)
    for size in histograms.frequent_sizes(blocks, 20, None, usable):
        assert size.waste == expected(blocks, usable, np.flatnonzero(blocks.size == size.low))
    total = histograms.total_waste(blocks, None, usable, 8)
    assert total.waste == expected(blocks, usable, np.arange(len(blocks)))
    assert total.read_count == usable.read.sum()
    assert total.computed_count == (usable.known & ~usable.read).sum()
    assert total.header_bytes == 8 * usable.known.sum()
    found = histograms.wasteful_stacks(blocks, None, usable, 4)
    every = [expected(blocks, usable, np.flatnonzero(blocks.stack == n)) for n in range(7)]
    largest = sorted(range(7), key=lambda n: -every[n].waste_bytes)[:4]
    assert [(stack, waste) for stack, _, waste in found] == [(n, every[n]) for n in largest]
    assert found[0][1] == (blocks.stack == largest[0]).sum()
    blocks = Blocks.empty()
    nothing = usable_of(UsableSizes(GLIBC, ReadSizes()), blocks)
    assert histograms.total_waste(blocks, None, nothing, 8).waste == histograms.Waste(0, 0, 0)
    assert histograms.wasteful_stacks(blocks, None, nothing, 3) == []
    assert histograms.size_bins(blocks, None, nothing) == []


def test_samples_count_for_what_they_stand_for(blocks: Blocks, usable: Usable) -> None:
    total = histograms.total_waste(blocks, 100, usable, 0)
    weight = weights(blocks.size, 100)
    waste = (weight * (usable.size_bytes - blocks.size))[usable.known].sum()
    asked = (weight * blocks.size)[usable.known].sum()
    assert total.waste.waste_bytes == pytest.approx(waste, rel=0.01)
    assert total.waste.usable_bytes == pytest.approx(waste + asked, rel=0.01)
    assert total.waste.unknown_count == pytest.approx(weight[~usable.known].sum(), rel=0.01)
    assert total.read_count == pytest.approx(weight[usable.read].sum(), rel=0.01)


def measured(snapshot: Snapshot, main: MainLibrary) -> Snapshot:
    return replace(snapshot, usable=UsableSizes(main, ReadSizes()))


def test_reports_and_what_speaks_against() -> None:
    snapshot = measured(snapshot_of_sizes(20, 20, 30, 200_000), GLIBC)
    report = json.loads(json_report(snapshot, NAMER, 1, show={"sizes"}))["sizes"]
    whole = {"usable_bytes": 88, "waste_bytes": 18, "unknown_allocations": 1}
    assert whole.items() <= report.items()
    assert report["header_bytes"] == 24
    assert (report["read_allocations"], report["computed_allocations"]) == (0, 3)
    assert [stack | {"stack": []} for stack in report["top_stacks"]] == [
        {"allocations": 4, **whole, "stack_id": 0, "stack": []}
    ]
    assert report["bins"][0] == {
        "from_bytes": 16, "to_bytes": 31, "allocations": 3, "bytes": 70,
        "usable_bytes": 88, "waste_bytes": 18, "unknown_allocations": 0,
    }  # fmt: skip
    assert report["uncertain"] is None
    lines = list(text_report(snapshot, NAMER, 1, show={"sizes"}))
    assert "                     16-31 B: 70 B in 3 allocations, 18 B wasted (20.5 %)" in lines
    label = "131072-262143 B".rjust(28)
    assert f"{label}: 195 KiB in 1 allocation, 1 of unknown usable size" in lines
    assert (
        "==> usable sizes (glibc): 88 B, 18 B wasted (20.5 %), 1 of unknown usable size, "
        "24 B more in headers, 3 computed"
    ) in lines
    stack = "     0: 18 B wasted (20.5 %), 1 of unknown usable size in 4 allocations"
    assert f"{stack}, in [no call stack]" in lines
    snapshot = snapshot_of_sizes(20)
    for library, file, others, why in (
        (MallocLibrary.JEMALLOC, "/lib/libjemalloc.so.2", ("pool in app",),
         "all blocks are counted as jemalloc's, but there is also pool in app"),
        (MallocLibrary.OTHER, "/opt/a\x1bpp", (),
         "sizes of another malloc library in a\x1bpp are not known"),
    ):  # fmt: skip
        shown = measured(snapshot, MainLibrary(library, file, others))
        report = json.loads(json_report(shown, NAMER, 1, show={"sizes"}))["sizes"]
        assert report["uncertain"] == why
        lines = text_report(shown, NAMER, 1, show={"sizes"})
        (line,) = (line for line in lines if line.startswith("==> usable sizes"))
        assert line.endswith(why.replace("\x1b", "\\x1b"))
