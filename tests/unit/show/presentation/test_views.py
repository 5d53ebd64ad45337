"""Snapshots, filters and formats on hand-made tables."""

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from tests import snapshots
from tests.unit.events import A, F, records, table_of
from tests.unit.reports import json_report, text_report
from tracelloc.errors import UsageError
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.codefiles import CodeModule, CodePlace, Unresolved
from tracelloc.model.frames import Frame
from tracelloc.model.losses import Counter
from tracelloc.model.process import Overhead, Target
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.model.stacks import StackFlag
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.show.export import EXPORTERS, exporter_for
from tracelloc.show.export.listings import fold
from tracelloc.show.filters import Filters, NamedStack
from tracelloc.show.presentation.combined import profile_of
from tracelloc.show.presentation.facts import format_frame
from tracelloc.show.presentation.naming import Namer, frame_name
from tracelloc.show.presentation.processfacts import losses_line
from tracelloc.show.presentation.profile import Metric
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.snapshots.taking import largest_blocks


class FakeSymbolizer(Symbolizer):
    """Names by address, so that no process is needed."""

    def __init__(self, names: dict[int, Any]) -> None:
        self.names = names

    version = 0
    waiting = 0

    def prepare(self, addresses: object, timeout_s: float | None = None) -> bool:
        return True

    def place(self, address: int) -> CodePlace[CodeModule] | Unresolved:
        return Unresolved.UNMAPPED

    def peek(self, addresses: object) -> list[Frame]:
        return [frame(self.names[a], a) for a in addresses]  # type: ignore[attr-defined]


def frame(name: str | None, address: int = 0x1234, module: str | None = "/opt/app") -> Frame:
    if name is None:
        return Frame(address, None, None, None, None, module, 0x34, Unresolved.NO_SYMBOL)
    return Frame(address, name, name, 4, 16, module, 0x34)


def snapshot_of(
    table: LiveTable,
    top: int = 10,
    min_age_ns: int | None = None,
    wanted: SnapshotRequest = TOTALS_ONLY,
) -> Snapshot:
    return snapshots.snapshot_of(
        table,
        10_000_000_000,
        replace(wanted, top=top, min_age_ns=min_age_ns),
        lost={Counter.LOST_FREES: 3, Counter.UNPAIRED_RETURNS: 1},
        time_s=1_700_000_000.25,
        target=Target(42, "app\x1b[31m"),
        started_ns=1,
        cpu_cores=0.5,
        overhead=Overhead(1234.4, 0.0912, ("reallocarray in libc.so.6",)),
    )


@pytest.fixture
def table() -> LiveTable:
    stacks = Stacks()
    stacks.add(1, (10, 11, 12), StackFlag(0))
    stacks.add(2, (20, 12), StackFlag.BROKEN)
    table = LiveTable(stacks)
    table.apply(
        records(
            [
                (A, 0x1000, 100, 1, 1), (A, 0x2000, 300, 2, 1), (A, 0x3000, 300, 1, 1),
                (A, 0x4000, 7, 3, 1), (A, 0x5000, 9, 0, 1), (F, 0x9999, 0, 0, 1),
            ],
            first_time=9_000_000_000,
        )
    )  # fmt: skip
    return table


NAMES = {10: "leaf;x", 11: "mid\n\x1b[31mdle", 12: "main", 20: None}


def test_empty_sampled_and_folded_views() -> None:
    snapshot = snapshot_of(LiveTable(Stacks()))
    namer = Namer(FakeSymbolizer({}), Filters())
    _head, nothing, *rest = text_report(snapshot, namer, 2, 5)
    assert nothing == "==> no allocations seen yet: is the target idle?"
    assert not [line for line in rest if " top " in line]
    assert json.loads(json_report(snapshot, namer, 2))["top_allocators"] == []
    assert b"".join(EXPORTERS[".fg"].write(profile_of(snapshot, namer), Metric.BYTES)) == b""
    table = table_of([(A, 16, 100, 1, 1), (A, 32, 100, 1, 1)], sample_bytes=1000)
    snapshot = snapshot_of(table, 1, 0)
    head, *lines = text_report(snapshot, Namer(FakeSymbolizer({}), Filters()), 1, 0)
    assert " live=~2.05KiB blocks=~21 " in head
    # 2 / (1 - exp(-0.1)) = 21.0 blocks of 100 bytes.
    sampled = " (sampled, one in 1000 B)"
    assert lines[0] == f"==> 1 top allocations out of ~21 for a total of ~2.05 KiB{sampled}"
    assert lines[3] == (
        f"==> 1 top allocations older than 0 s out of ~21 for a total of ~2.05 KiB{sampled}"
    )
    assert "     0: ~2.05 KiB in ~21 allocations, in [call stack lost]" in lines
    report = json.loads(json_report(snapshot, Namer(FakeSymbolizer({}), Filters()), 1))
    assert (report["sample_bytes"], report["live_allocations"]) == (1000, 21)


def test_text(table: LiveTable) -> None:
    namer = Namer(FakeSymbolizer(NAMES), Filters())
    snapshot = snapshot_of(table, 2)
    head, *lines = text_report(snapshot, namer, 2)
    assert head == (
        "2023-11-14T22:13:20Z pid=42 app\\x1b[31m live=716B blocks=5 growth=+4.20KiB/min "
        "events=1234/s leaking=? growing=? lost_events=3"
    )
    assert lines[:10] == [
        "==> 2 top allocations out of 5 for a total of 716 B",
        "    0x0000000000002000: 300 B (1 s old)",
        "        0x0000000000000014: ??? in /opt/app",
        "        0x000000000000000c: main+0x4/0x10 in /opt/app",
        "        [partial: code without frame pointers or call-frame information]",
        "    0x0000000000003000: 300 B (1 s old)",
        "        0x000000000000000a: leaf;x+0x4/0x10 in /opt/app",
        "        0x000000000000000b: mid\\x0a\\x1b[31mdle+0x4/0x10 in /opt/app",
        "        0x000000000000000c: main+0x4/0x10 in /opt/app",
        "==> 2 top allocators out of 4:",
    ]
    assert lines[10] == "     0: 400 B in 2 allocations, in leaf;x ← mid\\x0a\\x1b[31mdle"
    assert lines[-3] == (
        "==> 1,234 events/s, tracing takes about 4.6 % of one core; the program needs 1.1× "
        "the CPU time"
    )
    assert lines[-2] == (
        "==> lost 3 events, 1 unmatched free, 0 truncated stacks, 1 broken stack, "
        "2 allocations (40.00 %) with partial stacks, "
        "1 unpaired return, at least 1 and at most 2 live allocations, bytes unknown"
    )
    assert losses_line(snapshot) in lines[-2]
    unsure = losses_line(replace(snapshot, unsure_stacks=2))
    assert ", 1 broken stack, 2 stacks that may lack compiled frames, 2 alloc" in unsure


def test_json_is_one_plain_line(table: LiveTable) -> None:
    namer = Namer(FakeSymbolizer(NAMES), Filters())
    line = json_report(snapshot_of(table), namer, 10)
    assert re.fullmatch(r"[ -~]+", line)
    report = json.loads(line)
    assert report["command"] == "app\x1b[31m"
    assert report["lost"]["lost_frees"] == report["lost_events"] == 3
    assert report["broken_stacks"] == report["unknown_stacks"] == 1
    assert [(a["bytes"], len(a["stack"])) for a in report["top_allocators"]] == [
        (400, 3), (300, 3), (9, 0), (7, 0),
    ]  # fmt: skip


def test_folded(table: LiveTable) -> None:
    namer = Namer(FakeSymbolizer(NAMES), Filters())
    profile = profile_of(snapshot_of(table), namer)
    folded = b"".join(EXPORTERS[".fg"].write(profile, Metric.BYTES))
    assert folded.decode().splitlines() == [
        "[unknown];[call stack lost] 7",
        "[unknown];[no call stack] 9",
        "app;[partial: code without frame pointers or call-frame information];main;app+0x34 300",
        "app;main;mid\\x0a\\x1b[31mdle;leaf:x 400",
    ]
    frames = [
        frame("f", module="/lib/libfoo.so"),
        frame("main"),
        frame(None, module="/lib/libc.so.6"),
    ]
    assert fold(NamedStack(frames, [False, True, False]), 1) == "app;libc.so.6+0x34;f"
    assert frame_name(Frame(0xAB, None, None, None, None, None, None)) == "0xab"


def test_age_limit(table: LiveTable) -> None:
    limit = 1_000_000_000 - 2  # the blocks are 1 s, 1 s - 1 ns, … old
    snapshot = snapshot_of(table, 2, limit)
    assert (snapshot.old_blocks.count, snapshot.old_blocks.size_bytes) == (3, 700)
    assert [b.address for b in snapshot.old_blocks.largest] == [0x2000, 0x3000]
    lines = list(text_report(snapshot, Namer(FakeSymbolizer(NAMES), Filters()), 2, limit))
    assert any(line.startswith("==> 2 top allocations older than ") for line in lines)


@pytest.mark.parametrize("seed", range(8))
def test_largest_blocks_equal_a_plain_sort(seed: int) -> None:
    rng = random.Random(seed)
    table = LiveTable(Stacks())
    events = [(A, 16 * n, rng.randrange(40), 1, 1) for n in range(1, 3000)]
    for start in range(0, len(events), 500):
        table.apply(records(events[start : start + 500], first_time=start))
    plain = sorted((-size, n, address) for n, (_, address, size, _, _) in enumerate(events))
    for top in (0, 1, 7, 5000):
        chosen = largest_blocks(table, top, 10_000)
        assert [b.address for b in chosen.largest] == [address for _, _, address in plain[:top]]


def test_frames_and_suffixes() -> None:
    assert format_frame(frame("f")) == "f+0x4/0x10 in /opt/app"
    assert format_frame(frame(None)) == "??? in /opt/app"
    nowhere = Frame(1, None, None, None, None, None, None, Unresolved.UNMAPPED)
    assert format_frame(nowhere) == "??? [nothing is mapped there]"
    with_line = Frame(1, "f", "f", 4, None, "/a", 1, file="src/a.c", line=7)
    assert format_frame(with_line) == "f+0x4 in /a (src/a.c:7)"
    inlined = Frame(1, "f", "f", None, None, "/a", None, None, "src/a.c", 7, inlined=True)
    assert format_frame(inlined) == "f [inlined] in /a (src/a.c:7)"
    assert exporter_for("a.folded") is exporter_for("b.fg")
    assert exporter_for("a.speedscope.json") is not exporter_for("a.json")
    with pytest.raises(UsageError, match=r"known are \.fg"):
        exporter_for("a.txt")
